// Starts Go's cryptography and times what can be seen without any privilege.
//
//	go_start GODEBUG       starts itself again with that GODEBUG, after a stamp
//
// The start is from the execve of the second image to its main. With inittrace=1 each operation is
// then done twice; with fips140=debug messages on standard error say which self-tests ran in it.
// Lines of tab-separated fields are those of the C helpers; times are CLOCK_MONOTONIC.
package main

import (
	"ahead/ahead"
	"crypto"
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/fips140"
	"crypto/mlkem"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
)

const (
	passed = "FIPS 140-3 self-test passed: "
	mark   = "mark"
)

type operation struct {
	name    string
	prepare func()
	do      func() error
}

type message struct {
	text string
	atNs int64
}

var (
	digest = [32]byte{'a', 'b', 'c'}
	rsaKey *rsa.PrivateKey
)

func operations() []operation {
	return []operation{
		{"Go SHA-256", nil, func() error { sha256.Sum256(digest[:]); return nil }},
		{"Go SHA-512", nil, func() error { sha512.Sum512(digest[:]); return nil }},
		{"Go AES-256-GCM", nil, sealGCM},
		{"Go random", nil, func() error { _, err := rand.Read(make([]byte, 32)); return err }},
		{"Go PBKDF2", nil, func() error {
			_, err := pbkdf2.Key(sha256.New, "a password to derive from", digest[:16], 1000, 32)
			return err
		}},
		{"Go EC keygen", nil, func() error { _, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader); return err }},
		{"Go ECDH", nil, agree},
		{"Go Ed25519 keygen", nil, func() error { _, _, err := ed25519.GenerateKey(rand.Reader); return err }},
		{"Go ML-KEM-768 keygen", nil, func() error { _, err := mlkem.GenerateKey768(); return err }},
		{"Go RSA-2048 sign", makeKey, func() error {
			_, err := rsa.SignPKCS1v15(rand.Reader, rsaKey, crypto.SHA256, digest[:])
			return err
		}},
	}
}

func sealGCM() error {
	block, err := aes.NewCipher(digest[:])
	if err != nil {
		return err
	}
	gcm, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return err
	}
	gcm.Seal(nil, nil, digest[:], nil)
	return nil
}

func agree() error {
	key, err := ecdh.P256().GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	_, err = key.ECDH(key.PublicKey())
	return err
}

// makeKey makes the key of the signature, which is not part of its time.
func makeKey() {
	if rsaKey == nil {
		rsaKey, _ = rsa.GenerateKey(rand.Reader, 2048)
	}
}

// listener reads the runtime's messages from a pipe that stands for standard error.
type listener struct {
	ends   [2]int
	marked chan []message
}

// listen turns standard error into a pipe and returns when its reader waits for messages.
func listen() *listener {
	self := &listener{marked: make(chan []message)}
	if syscall.Pipe2(self.ends[:], syscall.O_CLOEXEC) != nil || syscall.Dup3(self.ends[1], 2, 0) != nil {
		os.Exit(3)
	}
	go self.read()
	self.heard()
	return self
}

// read stamps each message at its first bytes, and hands over what it has at each mark.
func (self *listener) read() {
	runtime.LockOSThread()
	var messages []message
	buffer, text, atNs := make([]byte, 256), "", int64(0)
	for {
		n, err := syscall.Read(self.ends[0], buffer)
		if err != nil && err != syscall.EINTR {
			os.Exit(3)
		}
		if text == "" {
			atNs = ahead.NowNs()
		}
		text += string(buffer[:max(n, 0)])
		for {
			line, rest, whole := strings.Cut(text, "\n")
			if !whole {
				break
			}
			text = rest
			if line == mark {
				self.marked <- messages
				messages = nil
			} else {
				messages = append(messages, message{line, atNs})
			}
		}
	}
}

// heard returns the messages since it was last called.
func (self *listener) heard() []message {
	if self == nil {
		return nil
	}
	if _, err := syscall.Write(self.ends[1], []byte(mark+"\n")); err != nil {
		os.Exit(3)
	}
	return <-self.marked
}

func again(setting string) error {
	path, err := os.Executable()
	if err != nil {
		return err
	}
	environment := []string{"GODEBUG=" + setting, "GOMAXPROCS=" + os.Getenv("GOMAXPROCS")}
	stamp := strconv.FormatInt(ahead.NowNs(), 10)
	return syscall.Exec(path, []string{path, "from", stamp}, environment)
}

func main() {
	mainNs := ahead.NowNs()
	if len(os.Args) == 2 {
		fmt.Fprintln(os.Stderr, again(os.Args[1]))
		os.Exit(2)
	}
	if len(os.Args) != 3 {
		os.Exit(2)
	}
	fromNs, _ := strconv.ParseInt(os.Args[2], 10, 64)
	_ = tls.VersionTLS13 // links what a network program links
	var ears *listener
	if strings.Contains(os.Getenv("GODEBUG"), "fips140=debug") {
		ears = listen()
	}
	lines, rounds := "", []int{}
	if strings.Contains(os.Getenv("GODEBUG"), "inittrace=1") {
		rounds = []int{1, 2}
	}
	for _, round := range rounds {
		for _, each := range operations() {
			lines += use(each, round, ears)
		}
	}
	state := map[bool]int{false: 0, true: 1}[fips140.Enabled()]
	fmt.Printf("version\t%s\n", strings.TrimPrefix(runtime.Version(), "go"))
	fmt.Printf("step\texec and the runtime's start\t%d\t%d\tok\n", fromNs, ahead.StartNs)
	fmt.Printf("step\tinit of all packages\t%d\t%d\tok\n", ahead.StartNs, mainNs)
	fmt.Print(lines)
	fmt.Printf("fips\t%d\nlost\t0\n", state)
}

// use does an operation once and returns its line, and those of the self-tests within it: each
// lasts from the end of the one before it, or the start of the operation, to its own message.
func use(what operation, round int, ears *listener) string {
	if what.prepare != nil {
		what.prepare()
	}
	ears.heard()
	startNs := ahead.NowNs()
	err := what.do()
	endNs := ahead.NowNs()
	result := "ok"
	if err != nil {
		result = "failed"
	}
	lines := fmt.Sprintf("use\t%s\t%d\t%d\t%d\t%s\n", what.name, round, startNs, endNs, result)
	fromNs := startNs
	for _, each := range ears.heard() {
		if name, found := strings.CutPrefix(each.text, passed); found {
			toNs := min(each.atNs, endNs)
			lines += fmt.Sprintf("test\t%s\tCAST\t%s\t%d\t%d\tPass\n", what.name, name, fromNs, toNs)
			fromNs = toNs
		}
	}
	return lines
}
