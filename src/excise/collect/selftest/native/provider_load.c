/* Loads an OpenSSL provider in a library context of its own and times what happens.
 *
 *   provider_load LIBCRYPTO CONFIG PROVIDER [again] [use]
 *
 * Every self-test the provider announces through OSSL_SELF_TEST_set_callback is stamped at its
 * start and its end. `again` runs the provider's self-tests a second time, so that what the first
 * run paid for tables and seeding can be told from the tests; `use` then runs one operation of each
 * kind twice, so that deferred and conditional tests show. libcrypto is reached by dlopen: no
 * headers are needed, and the same source serves every release from 3.0 on.
 *
 * Where EXCISE_COUNTER names a file, its first eight bytes are the clock: instructions, as an emulator
 * counts them into it.
 *
 * Nothing is printed before all is done. Lines of tab-separated fields:
 *   version  TEXT
 *   clock    NAME  RESOLUTION_NS
 *   step     NAME  START_NS  END_NS  RESULT
 *   test     STAGE  TYPE  DESCRIPTION  START_NS  END_NS  PHASE
 *   use      NAME  ROUND  START_NS  END_NS  RESULT
 *   probe    STAGE  CALLS  NS            what the callback itself took, outside the tests
 *   lost     COUNT
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

typedef int callback_fn(const void *parameters, void *argument);

/* Functions of libcrypto, by their documented prototypes; objects stay opaque. */
#define FUNCTIONS(F)                                                                             \
    F(const char *, OpenSSL_version, (int))                                                      \
    F(void *, OSSL_LIB_CTX_new, (void))                                                          \
    F(int, OSSL_LIB_CTX_load_config, (void *, const char *))                                     \
    F(void, OSSL_SELF_TEST_set_callback, (void *, callback_fn *, void *))                        \
    F(void *, OSSL_PROVIDER_load, (void *, const char *))                                        \
    F(int, OSSL_PROVIDER_self_test, (const void *))                                              \
    F(const void *, OSSL_PARAM_locate_const, (const void *, const char *))                       \
    F(int, OSSL_PARAM_get_utf8_string_ptr, (const void *, const char **))                        \
    F(int, RAND_bytes_ex, (void *, unsigned char *, size_t, unsigned))                           \
    F(void *, EVP_MD_fetch, (void *, const char *, const char *))                                \
    F(void, EVP_MD_free, (void *))                                                               \
    F(int, EVP_Digest, (const void *, size_t, unsigned char *, unsigned *, const void *, void *))\
    F(void *, EVP_CIPHER_fetch, (void *, const char *, const char *))                            \
    F(void *, EVP_CIPHER_CTX_new, (void))                                                        \
    F(void, EVP_CIPHER_CTX_free, (void *))                                                       \
    F(int, EVP_EncryptInit_ex2,                                                                  \
      (void *, const void *, const unsigned char *, const unsigned char *, const void *))        \
    F(int, EVP_EncryptUpdate, (void *, unsigned char *, int *, const unsigned char *, int))      \
    F(unsigned char *, EVP_Q_mac,                                                                \
      (void *, const char *, const char *, const char *, const void *, const void *, size_t,     \
       const unsigned char *, size_t, unsigned char *, size_t, size_t *))                        \
    F(void *, EVP_PKEY_Q_keygen, (void *, const char *, const char *, ...))                      \
    F(void, EVP_PKEY_free, (void *))                                                             \
    F(void *, EVP_MD_CTX_new, (void))                                                            \
    F(void, EVP_MD_CTX_free, (void *))                                                           \
    F(int, EVP_DigestSignInit_ex,                                                                \
      (void *, void **, const char *, void *, const char *, void *, const void *))               \
    F(int, EVP_DigestSign,                                                                       \
      (void *, unsigned char *, size_t *, const unsigned char *, size_t))                        \
    F(void *, EVP_PKEY_CTX_new_from_pkey, (void *, void *, const char *))                        \
    F(void, EVP_PKEY_CTX_free, (void *))                                                         \
    F(int, EVP_PKEY_derive_init, (void *))                                                       \
    F(int, EVP_PKEY_derive_set_peer, (void *, void *))                                           \
    F(int, EVP_PKEY_derive, (void *, unsigned char *, size_t *))                                 \
    F(int, EVP_PKEY_encrypt_init, (void *))                                                      \
    F(int, EVP_PKEY_encrypt,                                                                     \
      (void *, unsigned char *, size_t *, const unsigned char *, size_t))                        \
    F(int, EVP_PKEY_decrypt_init, (void *))                                                      \
    F(int, EVP_PKEY_decrypt,                                                                     \
      (void *, unsigned char *, size_t *, const unsigned char *, size_t))                        \
    F(int, EVP_PKEY_encapsulate_init, (void *, const void *))                                    \
    F(int, EVP_PKEY_encapsulate, (void *, unsigned char *, size_t *, unsigned char *, size_t *)) \
    F(int, PKCS5_PBKDF2_HMAC,                                                                    \
      (const char *, int, const unsigned char *, int, int, const void *, int, unsigned char *))

#define DECLARE(result, name, arguments) static result(*p_##name) arguments;
FUNCTIONS(DECLARE)

enum { MOST_TESTS = 4096, MOST_ROWS = 256, TEXT = 48 };

struct test {
    const char *stage;
    char type[TEXT], description[TEXT], phase[12];
    int64_t start_ns, end_ns;
};
struct row {
    const char *kind, *name, *result;
    int round;
    int64_t start_ns, end_ns;
};

static struct test tests[MOST_TESTS];
static struct row rows[MOST_ROWS];
static int test_count, row_count, lost_count;
static const char *stage = "load";
static int64_t callback_ns[2]; /* load, again */
static int callback_calls[2];
static void *context;
static void *kept_key; /* the key that sign, derive and encrypt use; made by keygen before them */

static volatile const int64_t *counter;

static int64_t now_ns(void)
{
    struct timespec t;
    if (counter != NULL)
        return *counter;
    clock_gettime(CLOCK_MONOTONIC_RAW, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static const char *text_of(const void *parameters, const char *key)
{
    const char *text = "";
    const void *found = p_OSSL_PARAM_locate_const(parameters, key);
    if (found != NULL && !p_OSSL_PARAM_get_utf8_string_ptr(found, &text))
        text = "";
    return text;
}

static void note_own_cost(int64_t since_ns, int64_t until_ns)
{
    int at = strcmp(stage, "load") == 0 ? 0 : strcmp(stage, "again") == 0 ? 1 : -1;
    if (at < 0)
        return;
    callback_ns[at] += until_ns - since_ns;
    callback_calls[at]++;
}

/* Called by the provider with phase Start, Corrupt and then Pass or Fail of every test. */
static int on_self_test(const void *parameters, void *argument)
{
    int64_t at = now_ns();
    const char *phase = text_of(parameters, "st-phase");
    (void)argument;
    if (strcmp(phase, "Corrupt") == 0)
        return 1;
    if (strcmp(phase, "Start") == 0) {
        if (test_count == MOST_TESTS) {
            lost_count++;
            return 1;
        }
        struct test *each = &tests[test_count++];
        each->stage = stage;
        snprintf(each->type, TEXT, "%s", text_of(parameters, "st-type"));
        snprintf(each->description, TEXT, "%s", text_of(parameters, "st-desc"));
        each->start_ns = now_ns();
        note_own_cost(at, each->start_ns);
        return 1;
    }
    /* Tests may nest: an end belongs to the last test that has none. */
    for (int i = test_count - 1; i >= 0; i--) {
        if (tests[i].end_ns == 0) {
            tests[i].end_ns = at;
            snprintf(tests[i].phase, sizeof tests[i].phase, "%s", phase);
            break;
        }
    }
    note_own_cost(at, now_ns());
    return 1;
}

static void add(const char *kind, const char *name, int round, int64_t start, const char *result)
{
    int64_t end = now_ns();
    if (row_count == MOST_ROWS) {
        lost_count++;
        return;
    }
    rows[row_count++] = (struct row){kind, name, result, round, start, end};
}

enum outcome { DONE, FAILED, ABSENT };
static const char *const outcome_names[] = {"ok", "failed", "absent"};

static enum outcome random_bytes(const char *name)
{
    unsigned char bytes[32];
    (void)name;
    return p_RAND_bytes_ex(context, bytes, sizeof bytes, 0) > 0 ? DONE : FAILED;
}

static enum outcome digest(const char *name)
{
    unsigned char out[64], in[64] = {0};
    unsigned size = 0;
    void *md = p_EVP_MD_fetch(context, name, NULL);
    if (md == NULL)
        return ABSENT;
    int ok = p_EVP_Digest(in, sizeof in, out, &size, md, NULL);
    p_EVP_MD_free(md);
    return ok > 0 ? DONE : FAILED;
}

static enum outcome cipher(const char *name)
{
    unsigned char key[32] = {0}, iv[16] = {0}, in[64] = {0}, out[96];
    int size = 0, ok;
    void *type = p_EVP_CIPHER_fetch(context, name, NULL), *ctx;
    if (type == NULL)
        return ABSENT;
    ctx = p_EVP_CIPHER_CTX_new();
    ok = p_EVP_EncryptInit_ex2(ctx, type, key, iv, NULL) > 0
         && p_EVP_EncryptUpdate(ctx, out, &size, in, sizeof in) > 0;
    p_EVP_CIPHER_CTX_free(ctx);
    return ok ? DONE : FAILED;
}

static enum outcome mac(const char *name)
{
    unsigned char key[32] = {1}, in[64] = {0}, out[64];
    size_t size = 0;
    return p_EVP_Q_mac(context, name, NULL, "SHA256", NULL, key, sizeof key, in, sizeof in, out,
                       sizeof out, &size)
               ? DONE
               : ABSENT;
}

static enum outcome pbkdf2(const char *name)
{
    unsigned char salt[16] = {2}, out[32];
    void *md = p_EVP_MD_fetch(context, "SHA256", NULL);
    int ok = md != NULL
             && p_PKCS5_PBKDF2_HMAC("a long password", 15, salt, sizeof salt, 1000, md,
                                    sizeof out, out) > 0;
    (void)name;
    p_EVP_MD_free(md);
    return ok ? DONE : FAILED;
}

static enum outcome keep(void *key)
{
    if (key == NULL)
        return ABSENT;
    p_EVP_PKEY_free(kept_key);
    kept_key = key;
    return DONE;
}

static enum outcome keygen_rsa(const char *name)
{
    return keep(p_EVP_PKEY_Q_keygen(context, NULL, name, (size_t)2048));
}

static enum outcome keygen_ec(const char *name)
{
    (void)name;
    return keep(p_EVP_PKEY_Q_keygen(context, NULL, "EC", "P-256"));
}

static enum outcome keygen(const char *name)
{
    return keep(p_EVP_PKEY_Q_keygen(context, NULL, name));
}

static enum outcome sign_with(const char *md)
{
    static unsigned char signature[65536];
    unsigned char in[64] = {0};
    size_t size = sizeof signature;
    void *ctx;
    int ok;
    if (kept_key == NULL)
        return ABSENT;
    ctx = p_EVP_MD_CTX_new();
    ok = p_EVP_DigestSignInit_ex(ctx, NULL, md, context, NULL, kept_key, NULL) > 0
         && p_EVP_DigestSign(ctx, signature, &size, in, sizeof in) > 0;
    p_EVP_MD_CTX_free(ctx);
    return ok ? DONE : FAILED;
}

static enum outcome sign_sha256(const char *name)
{
    (void)name;
    return sign_with("SHA256");
}

static enum outcome sign(const char *name)
{
    (void)name;
    return sign_with(NULL);
}

static enum outcome derive(const char *name)
{
    unsigned char secret[256];
    size_t size = sizeof secret;
    void *ctx;
    int ok;
    (void)name;
    if (kept_key == NULL)
        return ABSENT;
    ctx = p_EVP_PKEY_CTX_new_from_pkey(context, kept_key, NULL);
    ok = ctx != NULL && p_EVP_PKEY_derive_init(ctx) > 0
         && p_EVP_PKEY_derive_set_peer(ctx, kept_key) > 0
         && p_EVP_PKEY_derive(ctx, secret, &size) > 0;
    p_EVP_PKEY_CTX_free(ctx);
    return ok ? DONE : FAILED;
}

static enum outcome encapsulate(const char *name)
{
    static unsigned char wrapped[8192];
    unsigned char secret[256];
    size_t wrapped_size = sizeof wrapped, size = sizeof secret;
    void *ctx;
    int ok;
    (void)name;
    if (kept_key == NULL)
        return ABSENT;
    ctx = p_EVP_PKEY_CTX_new_from_pkey(context, kept_key, NULL);
    ok = ctx != NULL && p_EVP_PKEY_encapsulate_init(ctx, NULL) > 0
         && p_EVP_PKEY_encapsulate(ctx, wrapped, &wrapped_size, secret, &size) > 0;
    p_EVP_PKEY_CTX_free(ctx);
    return ok ? DONE : FAILED;
}

static const struct {
    const char *name, *algorithm;
    enum outcome (*run)(const char *);
} operations[] = {
    {"DRBG random bytes", "", random_bytes},
    {"SHA256 digest", "SHA256", digest},
    {"SHA3-256 digest", "SHA3-256", digest},
    {"AES-256-GCM encrypt", "AES-256-GCM", cipher},
    {"HMAC", "HMAC", mac},
    {"PBKDF2", "PBKDF2", pbkdf2},
    {"RSA keygen", "RSA", keygen_rsa},
    {"RSA sign", "RSA", sign_sha256},
    {"EC keygen", "EC", keygen_ec},
    {"ECDSA sign", "EC", sign_sha256},
    {"ECDH derive", "EC", derive},
    {"ED25519 keygen", "ED25519", keygen},
    {"ED25519 sign", "ED25519", sign},
    {"ML-DSA-44 keygen", "ML-DSA-44", keygen},
    {"ML-DSA-44 sign", "ML-DSA-44", sign},
    {"ML-KEM-768 keygen", "ML-KEM-768", keygen},
    {"ML-KEM-768 encapsulate", "ML-KEM-768", encapsulate},
    {"SLH-DSA-SHA2-128f keygen", "SLH-DSA-SHA2-128f", keygen},
    {"SLH-DSA-SHA2-128f sign", "SLH-DSA-SHA2-128f", sign},
};

static void use_everything(void)
{
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) {
        int makes_key = strstr(operations[i].name, "keygen") != NULL;
        if (makes_key) {
            p_EVP_PKEY_free(kept_key);
            kept_key = NULL;
        }
        for (int round = 1; round <= 2; round++) {
            int64_t start;
            /* The stage of a test says which operation it ran in. */
            stage = operations[i].name;
            start = now_ns();
            enum outcome outcome = operations[i].run(operations[i].algorithm);
            add("use", operations[i].name, round, start, outcome_names[outcome]);
            if (outcome == ABSENT)
                break;
        }
    }
}

static void *load_functions(const char *library)
{
    void *handle = dlopen(library, RTLD_NOW | RTLD_GLOBAL);
    if (handle == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return NULL;
    }
#define RESOLVE(result, name, arguments)                                                          \
    p_##name = (result(*) arguments)dlsym(handle, #name);                                         \
    if (p_##name == NULL) {                                                                       \
        fprintf(stderr, "%s has no %s: not OpenSSL 3.0 or later\n", library, #name);              \
        return NULL;                                                                              \
    }
    FUNCTIONS(RESOLVE)
    return handle;
}

static void print_all(void)
{
    struct timespec resolution;
    clock_getres(CLOCK_MONOTONIC_RAW, &resolution);
    printf("version\t%s\n", p_OpenSSL_version(0));
    if (counter != NULL)
        printf("clock\tinstructions\t1\n");
    else
        printf("clock\tCLOCK_MONOTONIC_RAW\t%ld\n", (long)resolution.tv_nsec);
    for (int i = 0; i < row_count; i++) {
        if (rows[i].round == 0)
            printf("%s\t%s\t%lld\t%lld\t%s\n", rows[i].kind, rows[i].name,
                   (long long)rows[i].start_ns, (long long)rows[i].end_ns, rows[i].result);
        else
            printf("%s\t%s\t%d\t%lld\t%lld\t%s\n", rows[i].kind, rows[i].name, rows[i].round,
                   (long long)rows[i].start_ns, (long long)rows[i].end_ns, rows[i].result);
    }
    for (int i = 0; i < test_count; i++)
        printf("test\t%s\t%s\t%s\t%lld\t%lld\t%s\n", tests[i].stage, tests[i].type,
               tests[i].description, (long long)tests[i].start_ns, (long long)tests[i].end_ns,
               tests[i].phase[0] ? tests[i].phase : "Unfinished");
    printf("probe\tload\t%d\t%lld\n", callback_calls[0], (long long)callback_ns[0]);
    printf("probe\tagain\t%d\t%lld\n", callback_calls[1], (long long)callback_ns[1]);
    printf("lost\t%d\n", lost_count);
}

static int use_counter(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    void *map = fd < 0 ? MAP_FAILED : mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    if (map == MAP_FAILED) {
        perror(path);
        return 0;
    }
    counter = map;
    return 1;
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "usage: provider_load LIBCRYPTO CONFIG PROVIDER [again] [use]\n");
        return 2;
    }
    if (getenv("EXCISE_COUNTER") != NULL && !use_counter(getenv("EXCISE_COUNTER")))
        return 3;
    int64_t start = now_ns();
    if (load_functions(argv[1]) == NULL)
        return 4;
    add("step", "libcrypto", 0, start, "ok");
    start = now_ns();
    context = p_OSSL_LIB_CTX_new();
    p_OSSL_SELF_TEST_set_callback(context, on_self_test, NULL);
    add("step", "context", 0, start, "ok");
    start = now_ns();
    int ok = argv[2][0] == '\0' || p_OSSL_LIB_CTX_load_config(context, argv[2]) > 0;
    add("step", "configuration", 0, start, ok ? "ok" : "failed");
    start = now_ns();
    void *provider = p_OSSL_PROVIDER_load(context, argv[3]);
    add("step", "provider", 0, start, provider != NULL ? "ok" : "failed");
    for (int i = 4; i < argc && provider != NULL; i++) {
        if (strcmp(argv[i], "again") == 0) {
            stage = "again";
            start = now_ns();
            ok = p_OSSL_PROVIDER_self_test(provider) > 0;
            add("step", "again", 0, start, ok ? "ok" : "failed");
        } else if (strcmp(argv[i], "use") == 0) {
            use_everything();
        }
    }
    print_all();
    return provider != NULL ? 0 : 1;
}
