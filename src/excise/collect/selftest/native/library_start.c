/* Starts a cryptographic library that has no self-test callback, and times what can be seen.
 *
 *   library_start libgcrypt | gnutls | nss | wolfssl
 *
 * Libraries are reached by dlopen, so that no headers are needed and an absent one is only absent.
 * libgcrypt announces each self-test and each change of its state to its log handler: a test lasts
 * from the announcement before it to its own. The others announce nothing: only steps are timed.
 *
 * Lines of tab-separated fields, printed after all is done:
 *   version  TEXT
 *   step     NAME  START_NS  END_NS  RESULT
 *   test     load  TYPE  DESCRIPTION  START_NS  END_NS  PHASE
 *   symbol   NAME  0 | 1     whether the library exports a function that only FIPS builds have
 *   fips     0 | 1 | unknown
 *   lost     COUNT
 * Exit code 4: the library is not there.
 */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { MOST_TESTS = 512, TEXT = 80, SET_VERBOSITY = 19, INITIALIZATION_FINISHED = 38, FIPS_MODE_P = 55 };

struct test {
    char what[TEXT], phase[12];
    int64_t start_ns, end_ns;
};
struct step {
    const char *name, *result;
    int64_t start_ns, end_ns;
};

struct symbol {
    const char *name;
    int present;
};

static struct test tests[MOST_TESTS];
static struct symbol symbols[8];
static int symbol_count;
static struct step steps[8];
static int test_count, step_count, lost_count;
static int64_t last_ns;
static const char *version = "", *fips = "unknown";
static char version_text[TEXT];

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_RAW, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int step(const char *name, int64_t start, int ok)
{
    int64_t end = now_ns();
    steps[step_count++] = (struct step){name, ok ? "ok" : "failed", start, end};
    return ok;
}

static void *open_first(const char *const *names)
{
    for (; *names != NULL; names++) {
        void *handle = dlopen(*names, RTLD_NOW | RTLD_GLOBAL);
        if (handle != NULL)
            return handle;
    }
    return NULL;
}

/* "libgcrypt selftest: digest SHA1 (2): Okay" ends a test; a change of state begins the first. */
static void on_log(void *opaque, int level, const char *format, va_list arguments)
{
    static const char mark[] = "libgcrypt selftest: ";
    char line[256];
    int64_t at = now_ns();
    (void)opaque;
    (void)level;
    vsnprintf(line, sizeof line, format, arguments);
    line[strcspn(line, "\n")] = '\0';
    if (strncmp(line, mark, sizeof mark - 1) == 0) {
        if (test_count == MOST_TESTS) {
            lost_count++;
            return;
        }
        struct test *each = &tests[test_count++];
        char *result = strrchr(line, ':');
        int passed = result != NULL && strncmp(result, ": Okay", 6) == 0;
        if (passed)
            *result = '\0';
        snprintf(each->what, TEXT, "%.*s", TEXT - 1, line + sizeof mark - 1);
        snprintf(each->phase, sizeof each->phase, "%s", passed ? "Pass" : "Fail");
        each->start_ns = last_ns;
        each->end_ns = at;
    }
    last_ns = now_ns();
}

static int start_libgcrypt(void)
{
    static const char *const names[] = {"libgcrypt.so.20", "libgcrypt.so", NULL};
    int64_t start = now_ns();
    void *handle = open_first(names);
    if (handle == NULL)
        return 4;
    step("dlopen", start, 1);
    int (*control)(int, ...) = (int (*)(int, ...))dlsym(handle, "gcry_control");
    const char *(*check_version)(const char *)
        = (const char *(*)(const char *))dlsym(handle, "gcry_check_version");
    void (*set_log_handler)(void (*)(void *, int, const char *, va_list), void *)
        = (void (*)(void (*)(void *, int, const char *, va_list), void *))dlsym(
            handle, "gcry_set_log_handler");
    if (control == NULL || check_version == NULL || set_log_handler == NULL)
        return 4;
    control(SET_VERBOSITY, 2);
    set_log_handler(on_log, NULL);
    start = last_ns = now_ns();
    version = check_version(NULL);
    step("gcry_check_version", start, version != NULL);
    start = now_ns();
    step("initialization finished", start, control(INITIALIZATION_FINISHED, 0) == 0);
    fips = control(FIPS_MODE_P, 0) ? "1" : "0";
    return 0;
}

static int start_gnutls(void)
{
    static const char *const names[] = {"libgnutls.so.30", NULL};
    int64_t start = now_ns();
    void *handle = open_first(names);
    if (handle == NULL)
        return 4;
    step("dlopen with its constructor", start, 1);
    const char *(*check)(const char *)
        = (const char *(*)(const char *))dlsym(handle, "gnutls_check_version");
    int (*init)(void) = (int (*)(void))dlsym(handle, "gnutls_global_init");
    unsigned (*enabled)(void) = (unsigned (*)(void))dlsym(handle, "gnutls_fips140_mode_enabled");
    if (check == NULL || init == NULL)
        return 4;
    start = now_ns();
    step("gnutls_global_init", start, init() == 0);
    version = check(NULL);
    if (enabled != NULL)
        fips = enabled() ? "1" : "0";
    return 0;
}

static int start_nss(void)
{
    static const char *const names[] = {"libnss3.so", NULL};
    int64_t start = now_ns();
    void *handle = open_first(names);
    if (handle == NULL)
        return 4;
    step("dlopen", start, 1);
    int (*init)(const char *) = (int (*)(const char *))dlsym(handle, "NSS_NoDB_Init");
    const char *(*get_version)(void) = (const char *(*)(void))dlsym(handle, "NSS_GetVersion");
    int (*is_fips)(void) = (int (*)(void))dlsym(handle, "PK11_IsFIPS");
    if (init == NULL || get_version == NULL)
        return 4;
    start = now_ns();
    step("NSS_NoDB_Init, which loads softoken and freebl", start, init(NULL) == 0);
    version = get_version();
    if (is_fips != NULL)
        fips = is_fips() ? "1" : "0";
    return 0;
}

static int start_wolfssl(void)
{
    static const char *const names[]
        = {"libwolfssl.so", "libwolfssl.so.44", "libwolfssl.so.43", "libwolfssl.so.42",
           "libwolfssl.so.35", NULL};
    int64_t start = now_ns();
    void *handle = open_first(names);
    if (handle == NULL)
        return 4;
    step("dlopen with its constructor", start, 1);
    int (*init)(void) = (int (*)(void))dlsym(handle, "wolfCrypt_Init");
    const char *(*get_version)(void)
        = (const char *(*)(void))dlsym(handle, "wolfSSL_lib_version");
    if (init == NULL)
        return 4;
    start = now_ns();
    step("wolfCrypt_Init", start, init() == 0);
    int (*tls_init)(void) = (int (*)(void))dlsym(handle, "wolfSSL_Init");
    start = now_ns();
    if (tls_init != NULL)
        step("wolfSSL_Init", start, tls_init() == 1);
    version = get_version != NULL ? get_version() : "";
    static const char *const only_fips[]
        = {"wolfCrypt_GetStatus_fips", "wolfCrypt_IntegrityTest_fips", "wolfCrypt_SetCb_fips",
           "wc_RunAllCast_fips", NULL};
    for (int i = 0; only_fips[i] != NULL; i++)
        symbols[symbol_count++] = (struct symbol){only_fips[i], dlsym(handle, only_fips[i]) != NULL};
    fips = dlsym(handle, only_fips[0]) != NULL ? "1" : "0";
    int (*integrity)(void) = (int (*)(void))dlsym(handle, only_fips[1]);
    int (*all)(void) = (int (*)(void))dlsym(handle, only_fips[3]);
    start = now_ns();
    if (integrity != NULL)
        step("wolfCrypt_IntegrityTest_fips", start, integrity() == 0);
    start = now_ns();
    if (all != NULL)
        step("wc_RunAllCast_fips", start, all() == 0);
    return 0;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*start)(void);
    } libraries[] = {{"libgcrypt", start_libgcrypt},
                     {"gnutls", start_gnutls},
                     {"nss", start_nss},
                     {"wolfssl", start_wolfssl}};
    int code = 2;
    for (size_t i = 0; argc == 2 && i < sizeof libraries / sizeof *libraries; i++)
        if (strcmp(argv[1], libraries[i].name) == 0)
            code = libraries[i].start();
    if (code != 0)
        return code;
    snprintf(version_text, sizeof version_text, "%s", version != NULL ? version : "");
    printf("version\t%s\n", version_text);
    for (int i = 0; i < step_count; i++)
        printf("step\t%s\t%lld\t%lld\t%s\n", steps[i].name, (long long)steps[i].start_ns,
               (long long)steps[i].end_ns, steps[i].result);
    for (int i = 0; i < symbol_count; i++)
        printf("symbol\t%s\t%d\n", symbols[i].name, symbols[i].present);
    for (int i = 0; i < test_count; i++) {
        char *space = strchr(tests[i].what, ' ');
        if (space != NULL)
            *space = '\0';
        printf("test\tload\t%s\t%s\t%lld\t%lld\t%s\n", tests[i].what,
               space != NULL ? space + 1 : "", (long long)tests[i].start_ns,
               (long long)tests[i].end_ns, tests[i].phase);
    }
    printf("fips\t%s\n", fips);
    printf("lost\t%d\n", lost_count);
    return 0;
}
