"""Self-tests of cryptographic libraries: run, timed and watched on this machine."""
