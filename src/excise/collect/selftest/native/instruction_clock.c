/* A plugin of QEMU's user emulation that makes a clock of executed instructions.
 *
 *   qemu-aarch64 -plugin instruction_clock.so,page=PATH PROGRAM...
 *
 * The file's first eight bytes, shared with whoever maps it, are the number of instructions that
 * the program has begun so far. They are counted by translation block, inline in the translated
 * code: a block that is left early, by a signal, counts whole.
 * Prototypes are those of qemu-plugin.h, interface version 1 (QEMU 6.0 to 8.2).
 */
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct qemu_plugin_tb;
typedef uint64_t plugin_id;
enum inline_operation { ADD_U64 };

size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *block);
void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id id,
                                           void (*callback)(plugin_id, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *block,
                                              enum inline_operation operation, void *pointer,
                                              uint64_t amount);

__attribute__((visibility("default"))) int qemu_plugin_version = 1;
static uint64_t *counter;

static void on_translation(plugin_id id, struct qemu_plugin_tb *block)
{
    (void)id;
    qemu_plugin_register_vcpu_tb_exec_inline(block, ADD_U64, counter,
                                             qemu_plugin_tb_n_insns(block));
}

__attribute__((visibility("default"))) int qemu_plugin_install(plugin_id id, const void *info,
                                                               int argc, char **argv)
{
    (void)info;
    if (argc < 1 || strncmp(argv[0], "page=", 5) != 0)
        return -1;
    int fd = open(argv[0] + 5, O_RDWR | O_CLOEXEC);
    if (fd < 0) {
        perror(argv[0] + 5);
        return -1;
    }
    counter = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (counter == MAP_FAILED)
        return -1;
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
    return 0;
}
