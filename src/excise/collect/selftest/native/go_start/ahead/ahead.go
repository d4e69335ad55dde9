// Package ahead is initialised before every package that has an import: its path sorts first.
package ahead

import _ "unsafe" // for linkname

//go:linkname nanotime runtime.nanotime
func nanotime() int64

// StartNs is CLOCK_MONOTONIC when the first packages are initialised.
var StartNs = nanotime()

// NowNs returns CLOCK_MONOTONIC.
func NowNs() int64 { return nanotime() }
