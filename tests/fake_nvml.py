"""A libnvidia-ml of our own, compiled when a test needs it. What it tells is a file that the test may rewrite.

    library = FakeNvml(tmp_path)
    library.tell(Card(bus_id="00000000:C1:00.0", uuid="GPU-one", total_bytes=80 * GIB, free_bytes=70 * GIB))
    subprocess.run([...], env={**os.environ, **library.environment})

The real binding loads it by the real name, so everything above the driver is real.
"""

import subprocess
from dataclasses import dataclass
from pathlib import Path

NOT_SUPPORTED = 3
GPU_IS_LOST = 15

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <libgen.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } Process;
typedef struct {
    char bus_id[64], uuid[96];
    unsigned long long total, free_bytes;
    int answer, memory_answer, processes;
    Process process[16];
} Card;
typedef struct { unsigned long long total, free_bytes, used; } Memory;
typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} Pci;

static Card cards[64];
static int count;
static char driver[64];

static void load(void) {
    Dl_info self;
    char path[4096], directory[4096], line[512];
    dladdr((void *)load, &self);
    snprintf(directory, sizeof directory, "%s", self.dli_fname);
    snprintf(path, sizeof path, "%s/cards", dirname(directory));
    FILE *file = fopen(path, "r");
    count = 0;
    while (file && fgets(line, sizeof line, file)) {
        if (!strncmp(line, "hang", 4)) for (;;) pause();
        if (sscanf(line, "driver %63s", driver) == 1) continue;
        Card *card = &cards[count];
        if (sscanf(line, "card %63s %95s %llu %llu %d %d", card->bus_id, card->uuid, &card->total, &card->free_bytes,
                   &card->answer, &card->memory_answer) == 6) { card->processes = 0; count++; continue; }
        Card *last = &cards[count ? count - 1 : 0];
        Process *process = &last->process[last->processes % 16];
        if (sscanf(line, "process %u %llu", &process->pid, &process->used) == 2) last->processes++;
    }
    if (file) fclose(file);
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; load(); return 0; }
int nvmlInit_v2(void) { load(); return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int error) { (void)error; return "an error of the fake"; }
int nvmlSystemGetDriverVersion(char *text, unsigned length) { load(); snprintf(text, length, "%s", driver); return 0; }
int nvmlDeviceGetCount_v2(unsigned *found) { load(); *found = count; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    load();
    if ((int)index >= count) return 2;
    *handle = &cards[index];
    return cards[index].answer;
}
int nvmlDeviceGetUUID(Card *card, char *text, unsigned length) { snprintf(text, length, "%s", card->uuid); return 0; }
int nvmlDeviceGetPciInfo_v3(Card *card, Pci *pci) {
    memset(pci, 0, sizeof *pci);
    snprintf(pci->bus_id, sizeof pci->bus_id, "%s", card->bus_id);
    return 0;
}
int nvmlDeviceGetMemoryInfo(Card *card, Memory *memory) {
    memory->total = card->total;
    memory->free_bytes = card->free_bytes;
    memory->used = card->total - card->free_bytes;
    return card->memory_answer;
}
int nvmlDeviceGetComputeRunningProcesses_v3(Card *card, unsigned *found, Process *processes) {
    unsigned room = *found;
    *found = card->processes;
    if (room < *found) return 7;
    for (unsigned i = 0; i < *found; i++) processes[i] = card->process[i];
    return 0;
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(Card *card, unsigned *found, Process *processes) {
    (void)card; (void)processes;
    *found = 0;
    return 0;
}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A card as the fake tells it; `answer` and `memory_answer` are NVML's codes, 0 for success."""

    bus_id: str
    uuid: str
    total_bytes: int
    free_bytes: int
    answer: int = 0
    memory_answer: int = 0
    processes: tuple[tuple[int, int], ...] = ()  # process id and bytes


class FakeNvml:
    """A compiled library in a directory of its own, with no cards at first."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "nvml"
        self.directory.mkdir()
        source = self.directory / "nvml.c"
        source.write_text(_SOURCE)
        name = "libnvidia-ml.so.1"
        subprocess.run(
            ["cc", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", self.directory / name, source, "-ldl"], check=True
        )
        self.tell()

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment that makes a process load it."""
        return {"LD_LIBRARY_PATH": str(self.directory)}

    def tell(self, *cards: Card, driver: str = "580.95.05") -> None:
        """From the next call on."""
        lines = [f"driver {driver}"]
        for card in cards:
            sizes = f"{card.total_bytes} {card.free_bytes}"
            lines.append(f"card {card.bus_id} {card.uuid} {sizes} {card.answer} {card.memory_answer}")
            lines += [f"process {pid} {count}" for pid, count in card.processes]
        self._write("\n".join(lines))

    def hang(self) -> None:
        """Every call from now on never returns."""
        self._write("hang")

    def _write(self, text: str) -> None:
        new = self.directory / "cards.new"
        new.write_text(text + "\n")
        new.replace(self.directory / "cards")
