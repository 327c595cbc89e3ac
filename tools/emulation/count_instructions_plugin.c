// A plugin for qemu-user (7 and later, where it is built with plugins) that counts the instructions of a program and
// writes the count, "mark TOTAL", whenever the program makes the system call of a mark.
//
// tools/count_instructions.sh compiles it; bench/instruction_count.cc makes the marks. Their prctl does nothing and is
// known by its first argument. The few functions of qemu's interface that it takes are declared here, because Debian
// packages no header of it. One thread: the count has no lock.
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define VISIBLE __attribute__((visibility("default")))

typedef uint64_t PluginId;
struct qemu_plugin_tb;
enum { kInlineAddU64 = 0 };

extern void qemu_plugin_register_vcpu_tb_trans_cb(PluginId id, void (*call)(PluginId, struct qemu_plugin_tb*));
extern size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb* block);
extern void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb* block, int op, void* counter, uint64_t add);
extern void qemu_plugin_register_vcpu_syscall_cb(PluginId id,
                                                 void (*call)(PluginId, unsigned vcpu, int64_t number, uint64_t, uint64_t,
                                                              uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t));

VISIBLE int qemu_plugin_version = 1;
VISIBLE int qemu_plugin_install(PluginId id, const void* info, int argc, char** argv);

static uint64_t count;
static FILE* output;

// Blocks end with a system call, so the count is exact there.
static void OnBlock(PluginId id, struct qemu_plugin_tb* block) {
  (void)id;
  qemu_plugin_register_vcpu_tb_exec_inline(block, kInlineAddU64, &count, qemu_plugin_tb_n_insns(block));
}

static void OnSystemCall(PluginId id, unsigned vcpu, int64_t number, uint64_t a1, uint64_t a2, uint64_t a3, uint64_t a4,
                         uint64_t a5, uint64_t a6, uint64_t a7, uint64_t a8) {
  const uint64_t kMark = 0x484C0001;
  (void)id, (void)vcpu, (void)number, (void)a2, (void)a3, (void)a4, (void)a5, (void)a6, (void)a7, (void)a8;
  if ((a1 & 0xFFFFFFFF) != kMark) return;
  fprintf(output, "mark %" PRIu64 "\n", count);
  fflush(output);
}

int qemu_plugin_install(PluginId id, const void* info, int argc, char** argv) {
  (void)info, (void)argc, (void)argv;
  // An argument of the plugin would be looked for differently in each version of qemu.
  const char* name = getenv("HEADLANE_COUNT_LOG");
  output = name != NULL ? fopen(name, "w") : stderr;
  if (output == NULL) return 1;
  qemu_plugin_register_vcpu_tb_trans_cb(id, OnBlock);
  qemu_plugin_register_vcpu_syscall_cb(id, OnSystemCall);
  return 0;
}
