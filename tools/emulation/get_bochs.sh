#!/bin/bash
# Puts an emulator of a machine with AVX-512 into build/deps/bochs-<version>: Bochs, firmware, boot loader, Linux, init.
#
# The only emulator of a PC known to execute AVX-512: qemu and valgrind refuse it. Built from Debian's sources, because
# that takes two minutes, is about twice as fast as the package (which has a debugger in it) and can be mended: see
# patch_source. Everything else comes out of Debian 12's packages, unpacked, never installed. No root is needed, and a
# second run does nothing. tools/emulation/run.sh calls it.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../lib/common.sh"
. "$HEADLANE_ROOT/tools/lib/private_apt.sh"

readonly kVersion=3.0
readonly kSha256=78f6c73d4a6472d5130a87ab9dc306d02c7c71ed8e25b3a8ef642e2a7acd282b
readonly kEmulator="$HEADLANE_ROOT/build/deps/bochs-$kVersion"
readonly kHere="$HEADLANE_ROOT/tools/emulation"
# What the caller takes for "cannot be had", as opposed to "is broken".
readonly kUnavailable=77

usage() {
  cat <<USAGE
usage: tools/emulation/get_bochs.sh
Prints the emulator's folder. Exit status $kUnavailable: it cannot be had here (no network, no Debian sources, not x86-64).
USAGE
}
case "${1:-}" in -h | --help) usage; exit 0 ;; esac

unavailable() {
  say "no emulator for AVX-512: $*"
  exit $kUnavailable
}

# Bochs 3.0 takes the displacement of `vdpbf16ps zmm, zmm, [memory + byte]` for a multiple of 4 bytes, where it is one of
# the vector's size; whether a compiler writes such an operand is luck.
patch_source() {
  local table=cpu/decoder/ia_opcodes_evex.def
  sed -i -E '/^bx_define_opcode\(BX_IA_EVEX_(VDPBF16PS|VDPPHPS)_/s/OP_mVdq32/OP_mVps/' $table
  [ "$(grep -cE '^bx_define_opcode\(BX_IA_EVEX_VDPBF16PS_.*OP_mVps' $table)" -eq 1 ] || die "$table is not as expected"
}

# No display, no debugger, no devices beyond a disk and a serial line, no logging. Without AMX, because its CPU models
# then leave it out: Linux would refuse to start on theirs.
configure_source() {
  local compiler=g++
  command -v ccache >/dev/null && compiler="ccache g++"
  CXX="$compiler" ../source/configure --with-nogui --disable-docbook --disable-xpm \
    --enable-cpu-level=6 --enable-x86-64 --enable-avx --enable-evex --enable-memtype --enable-protection-keys \
    --enable-all-optimizations --disable-logging --disable-stats --disable-assert-checks --disable-show-ips \
    --disable-large-ramfile --disable-cdrom --disable-gameport CFLAGS=-O2 CXXFLAGS="-O2 -w"
}

build_bochs() {
  local work="$kEmulator/work"
  rm -rf "$work"
  mkdir -p "$work/build"
  fetch_source bochs=3.0+dfsg-1 $kSha256 "$HEADLANE_ROOT/build/deps/archives/bochs-$kVersion.tar.xz" ||
    unavailable "the sources of Bochs could not be fetched"
  # Not tar: it would need a program for xz.
  python3 -m tarfile -e "$HEADLANE_ROOT/build/deps/archives/bochs-$kVersion.tar.xz" "$work"
  mv "$work"/bochs-*/ "$work/source"
  (cd "$work/source" && patch_source)
  say "building Bochs $kVersion with $(num_jobs) jobs (two minutes on two processors)"
  (cd "$work/build" && configure_source && make -j "$(num_jobs)" bochs) >"$kEmulator/build.log" 2>&1 ||
    { tail -n 20 "$kEmulator/build.log" >&2; die "Bochs could not be built: see $kEmulator/build.log"; }
  strip -o "$kEmulator/bochs" "$work/build/bochs"
  rm -rf "$work"
}

# Firmware, boot loader and kernel. The kernel is the one for virtual machines of clouds: small, and nothing probed.
unpack_packages() {
  local work="$kEmulator/packages" kernel
  local command_line=(
    console=ttyS0 quiet loglevel=2 panic=-1 rdinit=/init
    pci=off acpi=off nosmp nohpet nowatchdog no5lvl nokaslr tsc=reliable no_timer_check
    mitigations=off apparmor=0 audit=0 random.trust_cpu=on
    # FSRM, fast short strings. Bochs announces it and at the same time reports fast strings as switched off; Linux then
    # copies with a loop that needs both, and hangs at its start.
    clearcpuid=580
  )
  rm -rf "$work"
  kernel="$(private_apt apt-cache depends linux-image-cloud-amd64 | sed -n 's/^ *Depends: \(linux-image-[^ ]*\)$/\1/p')"
  [ -n "$kernel" ] || unavailable "Debian 12 names no kernel"
  fetch_debs "$work" "$kernel" bochsbios vgabios grub-common grub-pc-bin libdevmapper1.02.1 ||
    unavailable "kernel, firmware and boot loader could not be fetched"
  (
    cd "$work"
    for deb in ./*.deb; do
      case $deb in
        ./linux-image-*) dpkg-deb --fsys-tarfile "$deb" | tar -x ./boot ;;
        *) dpkg-deb -x "$deb" . ;;
      esac
    done
  )
  mkdir -p "$kEmulator/grub"
  cp "$work"/boot/vmlinuz-* "$kEmulator/vmlinuz"
  cp "$work/usr/share/bochs/BIOS-bochs-latest" "$work/usr/share/vgabios/vgabios.bin" "$kEmulator/"
  printf '%s\n' 'set root=(hd0,msdos1)' "linux /vmlinuz ${command_line[*]}" 'initrd /initrd' boot >"$work/grub.cfg"
  cp "$work/usr/lib/grub/i386-pc/boot.img" "$kEmulator/grub/"
  LD_LIBRARY_PATH="$work/lib/x86_64-linux-gnu:$work/usr/lib/x86_64-linux-gnu" "$work/usr/bin/grub-mkimage" \
    -d "$work/usr/lib/grub/i386-pc" -O i386-pc -p / -c "$work/grub.cfg" -o "$kEmulator/grub/core.img" \
    biosdisk part_msdos tar linux boot
  rm -rf "$work"
}

# Each part is kept by the sum of what makes it, so that a change here reaches folders that are kept between runs.
is_current() { [ "$(cat "$kEmulator/$1.stamp" 2>/dev/null)" = "$2" ]; }
sum() { sha256sum | cut -c 1-16; }

[ "$(uname -m)" = x86_64 ] || unavailable "the programs to run in it are built on x86-64"
command -v make >/dev/null || unavailable "make, which builds it, is not installed"
mkdir -p "$kEmulator"
exec 9>"$kEmulator/lock"
flock 9

bochs_sum="$(declare -f patch_source configure_source | sum)"
packages_sum="$(declare -f unpack_packages | sum)"
if ! is_current packages "$packages_sum" || ! is_current bochs "$bochs_sum"; then
  private_apt_update || unavailable "see above"
  if ! is_current packages "$packages_sum"; then
    unpack_packages
    echo "$packages_sum" >"$kEmulator/packages.stamp"
  fi
  if ! is_current bochs "$bochs_sum"; then
    build_bochs
    echo "$bochs_sum" >"$kEmulator/bochs.stamp"
  fi
fi
if [ ! -e "$kEmulator/init" ] || [ "$kHere/init.c" -nt "$kEmulator/init" ]; then
  gcc -O1 -Wall -Wextra -Werror -static -s "$kHere/init.c" -o "$kEmulator/init"
fi
printf '%s\n' "$kEmulator"
