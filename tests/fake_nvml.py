"""A libnvidia-ml of our own, compiled when a test needs it. What it tells is a file that the test may rewrite.

    library = FakeNvml(tmp_path)
    library.tell(Card(bus_id="00000000:C1:00.0", uuid="GPU-one", total_bytes=80 * GIB, free_bytes=70 * GIB))
    subprocess.run([...], env={**os.environ, **library.environment})

The real binding loads it by the real name, so everything above the driver is real.
"""

import subprocess
from dataclasses import astuple, dataclass
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
typedef struct Card {
    char bus_id[64], uuid[96];
    unsigned long long total, free_bytes, throttled, ecc_corrected, ecc_uncorrected;
    int answer, memory_answer, processes, slices, has_vitals;
    unsigned utilization, temperature, power_mw;
    Process process[16];
    struct Card *slice[8];
} Card;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { Card *card; unsigned long long type, data; unsigned gpu_instance, compute_instance; } Event;
typedef struct { unsigned long long total, free_bytes, used; } Memory;
typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} Pci;

static Card cards[64], slices[64];
static int count, slice_count;
static long heard;
static char driver[64];

static FILE *open_beside(const char *name, const char *mode) {
    Dl_info self;
    char path[4200], directory[4096];
    dladdr((void *)open_beside, &self);
    snprintf(directory, sizeof directory, "%s", self.dli_fname);
    snprintf(path, sizeof path, "%s/%s", dirname(directory), name);
    return fopen(path, mode);
}

static void load(void) {
    char line[512];
    FILE *file = open_beside("cards", "r");
    Card *last = &cards[0];
    count = slice_count = 0;
    while (file && fgets(line, sizeof line, file)) {
        if (!strncmp(line, "hang", 4)) for (;;) pause();
        if (sscanf(line, "driver %63s", driver) == 1) continue;
        Card *card = &cards[count];
        if (sscanf(line, "card %63s %95s %llu %llu %d %d", card->bus_id, card->uuid, &card->total, &card->free_bytes,
                   &card->answer, &card->memory_answer) == 6) {
            card->processes = card->slices = card->has_vitals = 0;
            last = card;
            count++;
            continue;
        }
        Card *slice = &slices[slice_count];
        if (sscanf(line, "slice %95s %llu %llu", slice->uuid, &slice->total, &slice->free_bytes) == 3) {
            Card *parent = &cards[count - 1];
            slice->processes = slice->slices = slice->memory_answer = 0;
            parent->slice[parent->slices++] = last = slice;
            slice_count++;
            continue;
        }
        if (sscanf(line, "vitals %u %u %u %llu %llu %llu", &last->utilization, &last->temperature, &last->power_mw,
                   &last->throttled, &last->ecc_corrected, &last->ecc_uncorrected) == 6) {
            last->has_vitals = 1;
            continue;
        }
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
int nvmlDeviceGetCount_v2(unsigned *found) {
    load();
    FILE *readings = open_beside("readings", "a");
    if (readings) { fputc('.', readings); fclose(readings); }
    *found = count;
    return 0;
}
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

// A card in MIG mode lists its slices at some of the places that it has for them.
int nvmlDeviceGetMigMode(Card *card, unsigned *current, unsigned *pending) {
    *current = *pending = card->slices > 0;
    return card->bus_id[0] ? 0 : 3;
}
int nvmlDeviceGetMaxMigDeviceCount(Card *card, unsigned *found) { (void)card; *found = 7; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(Card *card, unsigned index, Card **slice) {
    if (index % 2 || (int)index / 2 >= card->slices) return 6;
    *slice = card->slice[index / 2];
    return 0;
}

int nvmlDeviceGetUtilizationRates(Card *card, Utilization *rates) {
    rates->gpu = card->utilization;
    return card->has_vitals ? 0 : 3;
}
int nvmlDeviceGetTemperature(Card *card, int sensor, unsigned *degrees) {
    (void)sensor;
    *degrees = card->temperature;
    return card->has_vitals ? 0 : 3;
}
int nvmlDeviceGetPowerUsage(Card *card, unsigned *milliwatts) {
    *milliwatts = card->power_mw;
    return card->has_vitals ? 0 : 3;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(Card *card, unsigned long long *reasons) {
    *reasons = card->throttled;
    return card->has_vitals ? 0 : 3;
}
int nvmlDeviceGetTotalEccErrors(Card *card, int type, int counter, unsigned long long *errors) {
    (void)counter;
    *errors = type ? card->ecc_uncorrected : card->ecc_corrected;
    return card->has_vitals ? 0 : 3;
}

// Events are lines of a file: those after the set was made.
int nvmlEventSetCreate(void **set) {
    FILE *file = open_beside("events", "r");
    *set = &heard;
    if (file) { fseek(file, 0, SEEK_END); heard = ftell(file); fclose(file); }
    return 0;
}
int nvmlEventSetFree(void *set) { (void)set; return 0; }
int nvmlDeviceRegisterEvents(Card *card, unsigned long long types, void *set) {
    (void)card; (void)set;
    return types == 8 ? 0 : 2;
}
int nvmlEventSetWait_v2(void *set, Event *event, unsigned timeout_ms) {
    char line[128], bus_id[64];
    FILE *file = open_beside("events", "r");
    int answer = 10;
    (void)set; (void)timeout_ms;
    if (!file) return answer;
    fseek(file, heard, SEEK_SET);
    if (fgets(line, sizeof line, file) && sscanf(line, "%63s %llu %u", bus_id, &event->data, &event->gpu_instance) == 3)
        for (int i = 0; i < count; i++)
            if (!strcmp(cards[i].bus_id, bus_id)) { event->card = &cards[i]; event->type = 8; answer = 0; }
    heard = ftell(file);
    fclose(file);
    return answer;
}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A MIG device of a card."""

    uuid: str
    total_bytes: int
    free_bytes: int
    processes: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """Condition of a card; `throttled` is NVML's mask of reasons."""

    utilization_percent: int = 0
    temperature_c: int = 0
    power_mw: int = 0
    throttled: int = 0
    ecc_corrected: int = 0
    ecc_uncorrected: int = 0


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
    slices: tuple[Slice, ...] = ()  # some: the card is in MIG mode
    vitals: Vitals | None = None  # None: not supported


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
            if card.vitals is not None:
                lines.append(f"vitals {' '.join(str(value) for value in astuple(card.vitals))}")
            for one in card.slices:
                lines.append(f"slice {one.uuid} {one.total_bytes} {one.free_bytes}")
                lines += [f"process {pid} {count}" for pid, count in one.processes]
        self._write("\n".join(lines))

    def raise_xid(self, card: Card, xid: int, *, gpu_instance: int = 0xFFFFFFFF) -> None:
        """Report an error of a card, once."""
        with (self.directory / "events").open("a") as events:
            events.write(f"{card.bus_id} {xid} {gpu_instance}\n")

    def count_readings(self) -> int:
        """Return how often the cards were read since the last call."""
        counted = self.directory / "readings"
        readings = counted.stat().st_size if counted.exists() else 0
        counted.write_bytes(b"")
        return readings

    def hang(self) -> None:
        """Every call from now on never returns."""
        self._write("hang")

    def _write(self, text: str) -> None:
        new = self.directory / "cards.new"
        new.write_text(text + "\n")
        new.replace(self.directory / "cards")
