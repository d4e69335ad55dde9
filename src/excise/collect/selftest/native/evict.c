/* Drops files from the page cache, as far as nobody else maps them:  evict FILE...
 *
 * posix_fadvise(POSIX_FADV_DONTNEED) needs no privilege. Pages that another process maps, or that
 * are dirty, stay. Prints how many of the files' pages are left and how many they have.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    long page = sysconf(_SC_PAGESIZE), left = 0, all = 0;
    for (int i = 1; i < argc; i++) {
        struct stat about;
        int fd = open(argv[i], O_RDONLY | O_CLOEXEC);
        if (fd < 0 || fstat(fd, &about) != 0) {
            perror(argv[i]);
            return 1;
        }
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        size_t pages = ((size_t)about.st_size + page - 1) / page;
        unsigned char *resident = malloc(pages + 1);
        void *map = mmap(NULL, about.st_size + 1, PROT_READ, MAP_PRIVATE, fd, 0);
        if (resident != NULL && map != MAP_FAILED && mincore(map, about.st_size, resident) == 0)
            for (size_t at = 0; at < pages; at++)
                left += resident[at] & 1;
        all += pages;
        if (map != MAP_FAILED)
            munmap(map, about.st_size + 1);
        free(resident);
        close(fd);
    }
    printf("%ld of %ld pages left\n", left, all);
    return 0;
}
