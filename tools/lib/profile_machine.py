#!/usr/bin/env python3
"""What a server is, as its kernel tells anyone: for tools/profile.sh, which puts it into the report.

Everything is optional: a container, a virtual machine or an ARM board leaves files out, and the report then says
"unknown". Nothing needs root, and nothing that names its owner (host name, addresses, serial numbers) is read.
"""

import os
import pathlib
import platform
import re
import shutil
import subprocess

CPUS = pathlib.Path("/sys/devices/system/cpu")


def read(path, default=None):
    try:
        return pathlib.Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return default


def cpu_list(text):
    """[0, 1, 2, 5] of "0-2,5"."""
    cpus = []
    for part in (text or "").split(","):
        first, _, last = part.strip().partition("-")
        if first.isdigit():
            cpus += range(int(first), int(last or first) + 1)
    return cpus


def physical_cores(allowed, topology):
    """One processor of each core, in order, of those allowed. topology: {cpu: (package, core)}, None where unknown."""
    seen, chosen = set(), []
    for cpu in sorted(allowed):
        core = topology.get(cpu) or ("unknown", cpu)
        if core not in seen:
            seen.add(core)
            chosen.append(cpu)
    return chosen


def thread_counts(num_cores):
    """1, 2, 4, ... and all."""
    counts = []
    count = 1
    while count < num_cores:
        counts.append(count)
        count *= 2
    return counts + [num_cores]


def topology():
    result = {}
    for folder in CPUS.glob("cpu[0-9]*"):
        package, core = read(folder / "topology/physical_package_id"), read(folder / "topology/core_id")
        if core is not None:
            result[int(folder.name[3:])] = (package, core)
    return result


def processor_name():
    text = read("/proc/cpuinfo", "")
    match = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    if match:
        return match.group(1)
    # ARM says who and which part in numbers; lscpu knows some names.
    if shutil.which("lscpu"):
        output = subprocess.run(["lscpu"], capture_output=True, text=True, env=os.environ | {"LC_ALL": "C"}).stdout
        match = re.search(r"^Model name:\s*(.*)$", output, re.MULTILINE)
        if match and match.group(1) != "-":
            return match.group(1)
    ids = [re.search(rf"^CPU {field}\s*: (\S+)$", text, re.MULTILINE) for field in ("implementer", "part", "variant", "revision")]
    return "ARM implementer {} part {} variant {} revision {}".format(*(i.group(1) for i in ids)) if all(ids) else platform.machine()


def caches():
    result = []
    for index in range(8):
        folder = CPUS / f"cpu0/cache/index{index}"
        level = read(folder / "level")
        if level is not None:
            shared = cpu_list(read(folder / "shared_cpu_list", ""))
            result.append({"level": int(level), "type": read(folder / "type", "?"), "size": read(folder / "size", "?"), "shared_by": len(shared)})
    return result


def per_cpu(file):
    """{value: number of processors} of a file of cpufreq."""
    values = {}
    for path in CPUS.glob(f"cpu[0-9]*/cpufreq/{file}"):
        value = read(path)
        if value is not None:
            values[value] = values.get(value, 0) + 1
    return values


def boost():
    for path, on in ((CPUS / "cpufreq/boost", "1"), (CPUS / "intel_pstate/no_turbo", "0")):
        value = read(path)
        if value is not None:
            return "on" if value == on else "off"
    return None


def features():
    """The instruction sets that matter here."""
    text = read("/proc/cpuinfo", "")
    match = re.search(r"^(?:flags|Features)\s*: (.*)$", text, re.MULTILINE)
    wanted = re.compile(r"^(avx.*|amx.*|fma|f16c|asimd.*|sve.*|bf16|i8mm|fphp|hypervisor)$")
    return [flag for flag in (match.group(1).split() if match else []) if wanted.match(flag)]


def memory_gb():
    match = re.search(r"^MemTotal:\s*(\d+) kB$", read("/proc/meminfo", ""), re.MULTILINE)
    return round(int(match.group(1)) * 1024 / 1e9, 1) if match else None


def nodes():
    result = []
    for folder in sorted(pathlib.Path("/sys/devices/system/node").glob("node[0-9]*"), key=lambda path: int(path.name[4:])):
        result.append({"node": int(folder.name[4:]), "cpus": cpu_list(read(folder / "cpulist", ""))})
    return result


def quota():
    """Processors that the control group grants, or None."""
    text = read("/sys/fs/cgroup/cpu.max")
    if text and not text.startswith("max"):
        limit, period = text.split()
        return int(limit) / int(period)
    return None


def notes(machine):
    """What makes figures of this machine hard to compare, a line each."""
    lines = []
    governors = machine["governor"]
    if governors and set(governors) != {"performance"}:
        lines.append(f"The frequency governor is {', '.join(sorted(governors))}: `cpupower frequency-set -g performance` (root) makes figures steadier.")
    if not governors:
        lines.append("The kernel shows no frequency governor (usual in virtual machines): clocks may change unseen.")
    if machine["smt"] == "on":
        lines.append("SMT is on: one thread per physical core was used, on processors " + ", ".join(map(str, machine["cores"][:8])) +
                     (", ..." if len(machine["cores"]) > 8 else "") + "; work on the siblings would disturb it.")
    if machine["boost"] == "on":
        lines.append("Boost is on: few threads clock higher than many, and peaks per thread count differ by that.")
    if "hypervisor" in machine["features"]:
        lines.append("This is a virtual machine: neighbours share its memory bandwidth, and CPUID's cache sizes may be the host's.")
    if machine["quota"]:
        lines.append(f"A control group limits this process to {machine['quota']:g} processors.")
    if len(machine["nodes"]) > 1:
        lines.append(f"{len(machine['nodes'])} NUMA nodes: " + ("memory was interleaved over those of the threads by numactl." if machine["numactl"]
                     else "memory lies where it was first touched, as there is no numactl."))
    if machine["load"] is not None and machine["load"] > 0.2 * len(machine["cores"]):
        lines.append(f"The load average was {machine['load']:g} before the first run: other programs were running.")
    return lines


def describe():
    allowed = os.sched_getaffinity(0)
    cores = physical_cores(allowed, topology())
    # The kernel may not tell whether; then siblings do.
    smt = {"1": "on", "0": "off"}.get(read(CPUS / "smt/active"), "on" if len(cores) < len(allowed) else "off")
    machine = {
        "processor": processor_name(),
        "architecture": platform.machine(),
        "features": features(),
        "processors": len(allowed),
        "cores": cores,
        "smt": smt,
        "governor": per_cpu("scaling_governor"),
        "max_khz": max((int(khz) for khz in per_cpu("cpuinfo_max_freq") if khz.isdigit()), default=None),
        "boost": boost(),
        "caches": caches(),
        "memory_gb": memory_gb(),
        "transparent_hugepages": (re.findall(r"\[(\w+)\]", read("/sys/kernel/mm/transparent_hugepage/enabled", "")) or [None])[0],
        "nodes": nodes(),
        "numactl": shutil.which("numactl") is not None,
        "quota": quota(),
        "kernel": platform.release(),
        "system": platform.freedesktop_os_release().get("PRETTY_NAME", "?") if hasattr(platform, "freedesktop_os_release") else "?",
        "load": round(os.getloadavg()[0], 2),
    }
    machine["notes"] = notes(machine)
    return machine
