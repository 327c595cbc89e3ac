#!/usr/bin/env python3
"""Writes the disk that the emulated machine boots from: boot loader, kernel, and an initial file system of a few files.

Separate from run.sh because it is all about formats: a partition table, the cpio archive that Linux unpacks, and a tar
archive, which the boot loader reads as a file system. Made here, because then no root is needed for /dev/console and no
programs have to be installed for the rest. Called by run.sh.

usage: make_image.py EMULATOR_FOLDER IMAGE COMMANDS [PROGRAM...]
"""
import io
import os
import stat
import struct
import sys
import tarfile

SECTOR = 512
FIRST_SECTOR = 2048  # of the partition; the boot loader lies before it
CYLINDER = 16 * 63 * SECTOR


def cpio(entries):
    """An archive in the form `newc` of (name, mode, device, data)."""
    parts = []
    for inode, (name, mode, device, data) in enumerate(entries + [("TRAILER!!!", 0, (0, 0), b"")], start=1):
        encoded = name.encode() + b"\0"
        fields = [inode, mode, 0, 0, 1, 0, len(data), 0, 0, device[0], device[1], len(encoded), 0]
        header = b"070701" + b"".join(b"%08X" % field for field in fields) + encoded
        parts.append(header + b"\0" * (-len(header) % 4))
        parts.append(data + b"\0" * (-len(data) % 4))
    return b"".join(parts)


def read(path):
    with open(path, "rb") as file:
        return file.read()


def main(emulator, image, commands, programs):
    folder, program = stat.S_IFDIR | 0o755, stat.S_IFREG | 0o755
    entries = [(name, folder, (0, 0), b"") for name in ("dev", "proc", "tmp")]
    # Without it the kernel starts /init with no standard output.
    entries.append(("dev/console", stat.S_IFCHR | 0o600, (5, 1), b""))
    entries.append(("init", program, (0, 0), read(os.path.join(emulator, "init"))))
    entries.append(("commands", program, (0, 0), read(commands)))
    entries += [(os.path.basename(path), program, (0, 0), read(path)) for path in programs]

    files = io.BytesIO()
    with tarfile.open(fileobj=files, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in (("vmlinuz", read(os.path.join(emulator, "vmlinuz"))), ("initrd", cpio(entries))):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    partition = files.getvalue()

    boot = bytearray(read(os.path.join(emulator, "grub", "boot.img")))
    sectors = len(partition) // SECTOR
    # One partition: active, addressed by sectors alone, type 0x83. The loader has code for floppies in the table's place.
    table = struct.pack("<B3sB3sII", 0x80, b"\xfe\xff\xff", 0x83, b"\xfe\xff\xff", FIRST_SECTOR, sectors)
    boot[446:510] = table.ljust(64, b"\0")
    core = read(os.path.join(emulator, "grub", "core.img"))
    if len(boot) != SECTOR or len(core) > (FIRST_SECTOR - 1) * SECTOR:
        sys.exit(f"make_image.py: the boot loader has {len(boot)} and {len(core)} bytes, which do not fit")
    start = FIRST_SECTOR * SECTOR
    with open(image, "wb") as file:
        file.write((bytes(boot) + core).ljust(start, b"\0"))
        file.write(partition)
        file.truncate(-(-(start + len(partition)) // CYLINDER) * CYLINDER)


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
