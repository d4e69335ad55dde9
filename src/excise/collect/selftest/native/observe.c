/* Loaded into every process of a watched command through LD_AUDIT (see rtld-audit(7)); writes what
 * it sees to the file named by EXCISE_OBSERVE, one tab-separated line each:
 *
 *   hello   PID                              the process can be seen into
 *   switch  PID  NAME=VALUE                  a variable that switches FIPS mode is set in it
 *   object  PID  NAME                        a cryptographic library was loaded
 *   armed   PID  LIBRARY                     its self-tests will be announced
 *   test    PID  LIBRARY  TYPE  DESCRIPTION  PHASE  NS    NS on CLOCK_MONOTONIC_RAW
 *   state   PID  LIBRARY  fips | off | unseen             asked when the process ends
 *
 * OpenSSL: a provider asks the core for the self-test callback through its dispatch table; its entry
 * point is wrapped and given a table with our function, which also calls the program's own callback.
 * libgcrypt: it announces self-tests to its log handler at verbosity 2; ours is set, and handlers
 * and levels that the program sets later are kept and served.
 * The auditor has a libc of its own: the program's allocator and buffers are never touched.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    MOST_PROVIDERS = 8,
    MOST_FUNCTIONS = 256,
    SELF_TEST_CALLBACK = 100, /* OSSL_FUNC_SELF_TEST_CB of core_dispatch.h */
    SET_VERBOSITY = 19,       /* GCRYCTL_SET_VERBOSITY of gcrypt.h */
};

static void say(const char *format, ...)
{
    const char *path = getenv("EXCISE_OBSERVE");
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    int size = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    int saved = errno;
    int fd = path == NULL ? -1 : open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (fd >= 0) {
        /* A line is written whole or not at all; one that is lost makes the answer NOT_COVERED. */
        if (write(fd, line, size < (int)sizeof line ? (size_t)size : sizeof line - 1) < 0)
            errno = saved;
        close(fd);
    }
    errno = saved;
}

static long long now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_RAW, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* ---- symbols of an object that is mapped and relocated ---- */

/* An address in a dynamic section is relocated by glibc, but not for every object. */
static const void *at(const struct link_map *map, ElfW(Addr) address)
{
    return (const void *)(address < map->l_addr ? address + map->l_addr : address);
}

static uint32_t gnu_hash(const char *name)
{
    uint32_t hash = 5381;
    for (; *name != '\0'; name++)
        hash = hash * 33 + (unsigned char)*name;
    return hash;
}

/* dlsym searches the scope of a handle, which an object that the program links has none of: the
 * object's own DT_GNU_HASH table is searched instead. Functions only. */
static void *function_in(const struct link_map *map, const char *name)
{
    const uint32_t *table = NULL;
    const ElfW(Sym) *symbols = NULL;
    const char *names = NULL;
    for (const ElfW(Dyn) *each = map->l_ld; each->d_tag != DT_NULL; each++) {
        if (each->d_tag == DT_GNU_HASH)
            table = at(map, each->d_un.d_ptr);
        else if (each->d_tag == DT_SYMTAB)
            symbols = at(map, each->d_un.d_ptr);
        else if (each->d_tag == DT_STRTAB)
            names = at(map, each->d_un.d_ptr);
    }
    if (table == NULL || symbols == NULL || names == NULL || table[0] == 0)
        return NULL;
    uint32_t hash = gnu_hash(name), first = table[1];
    const uint32_t *buckets = table + 4 + table[2] * (sizeof(ElfW(Addr)) / sizeof *table);
    const uint32_t *chain = buckets + table[0];
    uint32_t index = buckets[hash % table[0]];
    for (; index >= first; index++) {
        const ElfW(Sym) *symbol = &symbols[index];
        if ((chain[index - first] | 1) == (hash | 1) && symbol->st_shndx != SHN_UNDEF
            && strcmp(names + symbol->st_name, name) == 0)
            return (void *)(map->l_addr + symbol->st_value);
        if (chain[index - first] & 1)
            break;
    }
    return NULL;
}

/* ---- OpenSSL ---- */

struct dispatch {
    int id;
    void (*function)(void);
};
struct parameter { /* OSSL_PARAM of openssl/core.h */
    const char *key;
    unsigned type;
    void *data;
    size_t data_size, return_size;
};
typedef int callback_fn(const struct parameter *, void *);
typedef void get_callback_fn(void *, callback_fn **, void **);
typedef int init_fn(const void *, const struct dispatch *, const struct dispatch **, void **);

static struct provider {
    init_fn *init;
    get_callback_fn *get_callback;
    callback_fn *callback;
    void *argument;
    struct dispatch table[MOST_FUNCTIONS];
} providers[MOST_PROVIDERS];
static int provider_count;

static const char *text_of(const struct parameter *each, const char *key)
{
    for (; each->key != NULL; each++)
        if (strcmp(each->key, key) == 0 && each->data != NULL)
            return each->data;
    return "";
}

static int on_self_test(const struct parameter *parameters, void *argument)
{
    struct provider *own = argument;
    const char *phase = text_of(parameters, "st-phase");
    if (strcmp(phase, "Corrupt") != 0)
        say("test\t%d\topenssl\t%s\t%s\t%s\t%lld\n", getpid(), text_of(parameters, "st-type"),
            text_of(parameters, "st-desc"), phase, now_ns());
    return own->callback != NULL ? own->callback(parameters, own->argument) : 1;
}

static void get_callback(struct provider *own, void *core, callback_fn **callback, void **argument)
{
    own->callback = NULL;
    own->argument = NULL;
    if (own->get_callback != NULL)
        own->get_callback(core, &own->callback, &own->argument);
    *callback = on_self_test;
    *argument = own;
}

static int init(struct provider *own, get_callback_fn *ours, const void *handle,
                const struct dispatch *in, const struct dispatch **out, void **context)
{
    int count = 0, found = 0;
    for (; in[count].id != 0 && count < MOST_FUNCTIONS - 2; count++) {
        own->table[count] = in[count];
        if (in[count].id == SELF_TEST_CALLBACK) {
            own->get_callback = (get_callback_fn *)in[count].function;
            own->table[count].function = (void (*)(void))ours;
            found = 1;
        }
    }
    if (!found || in[count].id != 0)
        return own->init(handle, in, out, context);
    own->table[count].id = 0;
    say("armed\t%d\topenssl\n", getpid());
    return own->init(handle, own->table, out, context);
}

/* One pair of functions a provider: neither carries an argument that could tell them apart. */
#define SLOT(n)                                                                                   \
    static void get_callback_##n(void *core, callback_fn **callback, void **argument)             \
    {                                                                                             \
        get_callback(&providers[n], core, callback, argument);                                    \
    }                                                                                             \
    static int init_##n(const void *handle, const struct dispatch *in,                            \
                        const struct dispatch **out, void **context)                              \
    {                                                                                             \
        return init(&providers[n], get_callback_##n, handle, in, out, context);                   \
    }
SLOT(0) SLOT(1) SLOT(2) SLOT(3) SLOT(4) SLOT(5) SLOT(6) SLOT(7)
static init_fn *const slots[MOST_PROVIDERS]
    = {init_0, init_1, init_2, init_3, init_4, init_5, init_6, init_7};

static uintptr_t wrap_provider(uintptr_t address)
{
    for (int i = 0; i < provider_count; i++)
        if ((uintptr_t)providers[i].init == address)
            return (uintptr_t)slots[i];
    if (provider_count == MOST_PROVIDERS) {
        say("state\t%d\topenssl\tunseen\n", getpid());
        return address;
    }
    providers[provider_count].init = (init_fn *)address;
    return (uintptr_t)slots[provider_count++];
}

/* ---- libgcrypt ---- */

typedef void handler_fn(void *, int, const char *, va_list);
typedef void set_handler_fn(handler_fn *, void *);
typedef int control_fn(int, ...);

static struct link_map *gcrypt_map, *gnutls_map, *wolfssl_map, *old_crypto_map;
static control_fn *real_control;
static set_handler_fn *real_set_handler;
static handler_fn *their_handler;
static void *their_opaque;
static int their_verbosity, gcrypt_armed, running;
static long long gcrypt_since_ns;

static void on_log(void *opaque, int level, const char *format, va_list arguments)
{
    static const char mark[] = "libgcrypt selftest: ", change[] = "libgcrypt state transition";
    char line[256];
    va_list copy;
    (void)opaque;
    va_copy(copy, arguments);
    vsnprintf(line, sizeof line, format, copy);
    va_end(copy);
    int is_test = strncmp(line, mark, sizeof mark - 1) == 0;
    if (is_test) {
        line[strcspn(line, "\n")] = '\0';
        char *what = line + sizeof mark - 1, *result = strrchr(what, ':');
        char *space = strchr(what, ' ');
        int passed = result != NULL && strncmp(result, ": Okay", 6) == 0;
        if (passed)
            *result = '\0';
        if (space != NULL)
            *space = '\0';
        say("test\t%d\tlibgcrypt\t%s\t%s\tStart\t%lld\n", getpid(), what,
            space != NULL ? space + 1 : "", gcrypt_since_ns);
        say("test\t%d\tlibgcrypt\t%s\t%s\t%s\t%lld\n", getpid(), what,
            space != NULL ? space + 1 : "", passed ? "Pass" : "Fail", now_ns());
    }
    gcrypt_since_ns = now_ns();
    if ((is_test || strncmp(line, change, sizeof change - 1) == 0) && their_verbosity < 2)
        return;
    if (their_handler != NULL)
        their_handler(their_opaque, level, format, arguments);
    else
        vdprintf(2, format, arguments);
}

static void arm_gcrypt(void)
{
    if (gcrypt_armed || gcrypt_map == NULL)
        return;
    real_control = (control_fn *)function_in(gcrypt_map, "gcry_control");
    real_set_handler = (set_handler_fn *)function_in(gcrypt_map, "gcry_set_log_handler");
    if (real_control == NULL || real_set_handler == NULL)
        return;
    gcrypt_armed = 1;
    gcrypt_since_ns = now_ns();
    real_set_handler(on_log, NULL);
    real_control(SET_VERBOSITY, 2);
    say("armed\t%d\tlibgcrypt\n", getpid());
}

static void wrapped_set_handler(handler_fn *handler, void *opaque)
{
    their_handler = handler;
    their_opaque = opaque;
    if (!gcrypt_armed && real_set_handler != NULL)
        real_set_handler(handler, opaque);
}

/* Integer and pointer arguments of a variadic function travel in the same registers as here. */
static int wrapped_control(int command, long a, long b, long c, long d)
{
    if (command == SET_VERBOSITY && gcrypt_armed) {
        their_verbosity = (int)a;
        return real_control(SET_VERBOSITY, their_verbosity > 2 ? their_verbosity : 2);
    }
    return real_control(command, a, b, c, d);
}

/* ---- the auditing interface ---- */

unsigned int la_version(unsigned int version)
{
    static const char *const switches[]
        = {"LIBGCRYPT_FORCE_FIPS_MODE", "GNUTLS_FORCE_FIPS_MODE", "NSS_FIPS",
           "OPENSSL_FORCE_FIPS_MODE",   "OPENSSL_FIPS",           NULL};
    say("hello\t%d\n", getpid());
    for (int i = 0; switches[i] != NULL; i++)
        if (getenv(switches[i]) != NULL)
            say("switch\t%d\t%s=%s\n", getpid(), switches[i], getenv(switches[i]));
    return version < LAV_CURRENT ? version : LAV_CURRENT;
}

unsigned int la_objopen(struct link_map *map, Lmid_t namespace, uintptr_t *cookie)
{
    static const char *const known[] = {"fips.so", "libcrypto.so", "libgcrypt.so", "libgnutls.so",
                                        "libfreebl", "libwolfssl.so", NULL};
    const char *slash = strrchr(map->l_name, '/');
    const char *name = slash != NULL ? slash + 1 : map->l_name;
    (void)cookie;
    if (namespace != LM_ID_BASE)
        return 0;
    for (int i = 0; known[i] != NULL; i++)
        if (strncmp(name, known[i], strlen(known[i])) == 0)
            say("object\t%d\t%s\n", getpid(), name);
    if (strncmp(name, "libgcrypt.so", 12) == 0)
        gcrypt_map = map;
    if (strncmp(name, "libgnutls.so", 12) == 0)
        gnutls_map = map;
    if (strncmp(name, "libwolfssl.so", 13) == 0)
        wolfssl_map = map;
    if (strncmp(name, "libcrypto.so.1", 14) == 0)
        old_crypto_map = map;
    /* Bindings are looked at where they lead to libgcrypt, or to what was opened later: a provider
     * is. The rest binds as it always does. */
    return LA_FLG_BINDFROM | (running || map == gcrypt_map ? LA_FLG_BINDTO : 0);
}

void la_preinit(uintptr_t *cookie)
{
    (void)cookie;
    /* All that the program links is relocated now, and none of its code has run. */
    running = 1;
    arm_gcrypt();
}

uintptr_t la_symbind64(Elf64_Sym *symbol, unsigned int index, uintptr_t *from, uintptr_t *to,
                       unsigned int *flags, const char *name)
{
    (void)index;
    (void)from;
    (void)to;
    (void)flags;
    if (strcmp(name, "OSSL_provider_init") == 0)
        return wrap_provider(symbol->st_value);
    if (strncmp(name, "gcry_", 5) == 0) {
        if (running)
            arm_gcrypt();
        if (strcmp(name, "gcry_set_log_handler") == 0) {
            real_set_handler = (set_handler_fn *)symbol->st_value;
            return (uintptr_t)wrapped_set_handler;
        }
        if (strcmp(name, "gcry_control") == 0) {
            real_control = (control_fn *)symbol->st_value;
            return (uintptr_t)wrapped_control;
        }
    }
    return symbol->st_value;
}

unsigned int la_objclose(uintptr_t *cookie)
{
    static int asked;
    (void)cookie;
    /* At a process's end the program itself is closed first, before its libraries are torn down;
     * a plugin closed earlier only makes the question early. */
    if (asked++ > 0 || !running)
        return 0;
    if (gnutls_map != NULL) {
        unsigned (*enabled)(void)
            = (unsigned (*)(void))function_in(gnutls_map, "gnutls_fips140_mode_enabled");
        say("state\t%d\tgnutls\t%s\n", getpid(), enabled != NULL && enabled() ? "fips" : "off");
    }
    if (wolfssl_map != NULL)
        say("state\t%d\twolfssl\t%s\n", getpid(),
            function_in(wolfssl_map, "wolfCrypt_GetStatus_fips") != NULL ? "unseen" : "off");
    if (old_crypto_map != NULL)
        say("state\t%d\topenssl\t%s\n", getpid(),
            function_in(old_crypto_map, "FIPS_selftest") != NULL ? "unseen" : "off");
    return 0;
}
