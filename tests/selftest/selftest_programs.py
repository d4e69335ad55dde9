"""Programs that are built for the tests: they run self-tests, or do not, or cannot be seen into."""

from __future__ import annotations

import ctypes.util
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from skips import skip

GCRYPT_PROGRAM = r"""
const char *gcry_check_version(const char *);
int gcry_control(int, ...);
int main(void) { gcry_check_version(0); return gcry_control(38, 0) != 0; }
"""
# A provider in the shape of OpenSSL's: it asks the core for the self-test callback at its entry.
PROVIDER = r"""
#include <stddef.h>
typedef struct { int id; void (*function)(void); } dispatch;
typedef struct { const char *key; unsigned type; void *data; size_t size, returned; } parameter;
typedef int callback(const parameter *, void *);
static void announce(callback *call, void *argument, char *phase)
{
    parameter list[] = {{"st-phase", 4, phase, 0, 0}, {"st-type", 4, "KAT_Digest", 0, 0},
                        {"st-desc", 4, "SHA2", 0, 0}, {NULL, 0, NULL, 0, 0}};
    if (call != NULL) call(list, argument);
}
static void teardown(void *context) { (void)context; }
int OSSL_provider_init(const void *handle, const dispatch *in, const dispatch **out, void **context)
{
    static const dispatch mine[] = {{1024, (void (*)(void))teardown}, {0, NULL}};
    const void *core = NULL;
    void (*get)(const void *, callback **, void **) = NULL;
    callback *call = NULL;
    void *argument = NULL;
    for (; in->id != 0; in++) {
        if (in->id == 4) core = ((const void *(*)(const void *))in->function)(handle);
        if (in->id == 100) get = (void (*)(const void *, callback **, void **))in->function;
    }
    if (get != NULL) get(core, &call, &argument);
    announce(call, argument, "Start");
    announce(call, argument, "Corrupt");
    announce(call, argument, "Pass");
    *out = mine;
    *context = (void *)mine;
    return 1;
}
"""
LOADS_PROVIDER = r"""
#include <string.h>
void *OSSL_PROVIDER_load(void *, const char *);
int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "no") == 0) return OSSL_PROVIDER_load(0, "default") == 0;
    return OSSL_PROVIDER_load(0, argc > 1 ? argv[1] : "fips") == 0;
}
"""
NOTHING = "int main(void) { return 0; }\n"

Compile = Callable[..., Path]


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """Return what compiles C source into a program and returns its path."""
    if shutil.which("cc") is None:
        skip("no C compiler")
    folder = tmp_path_factory.mktemp("programs")

    def compile_(name: str, source: str, *flags: str) -> Path:
        path = folder / name
        words = ["cc", "-O1", "-x", "c", "-", "-o", str(path), *flags]
        done = subprocess.run(words, input=source.encode(), capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return path

    return compile_


@pytest.fixture(scope="session")
def gcrypt_program(compiled: Compile) -> Path:
    """Return a program that initialises libgcrypt and ends."""
    if ctypes.util.find_library("gcrypt") is None:
        skip("no libgcrypt")
    return compiled("gcrypt-program", GCRYPT_PROGRAM, "-l:libgcrypt.so.20")


@pytest.fixture(scope="session")
def static_program(compiled: Compile) -> Path:
    """Return a program that no loader starts."""
    return compiled("static-program", NOTHING, "-static")


@pytest.fixture(scope="session")
def announcing_provider(compiled: Compile) -> Path:
    """Return an OpenSSL provider that announces one self-test at its load."""
    return compiled("announcing.so", PROVIDER, "-shared", "-fPIC")


@pytest.fixture(scope="session")
def provider_loader(compiled: Compile) -> Path:
    """Return a program that loads a provider unconditionally; `no` makes it load the default."""
    if ctypes.util.find_library("crypto") is None:
        skip("no libcrypto")
    return compiled("provider-loader", LOADS_PROVIDER, "-l:libcrypto.so.3")
