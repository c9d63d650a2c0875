#!/bin/bash
# The guest that `cargo xtask zfs` starts: Debian 12 with its kernel's nbd, ZFS and PostgreSQL 15, for QEMU without KVM.
#
#   build.sh DIR      makes DIR/vmlinuz, DIR/initrd.gz, DIR/rootfs.img (some 420 MB on disk), as root
#
# Everything comes from Debian's own packages (main and contrib), through the apt settings of this machine. ZFS is compiled in a folder that is
# thrown away; DIR/modules.tar and DIR/modules.version keep the result until they are deleted, since it is what takes long.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=${1:?where to build}
suite=${VM_SUITE:-bookworm}
jobs=${JOBS:-$(nproc)}
mkdir -p "$dir"
cd "$dir"
dir=$PWD
say() { echo "[$((SECONDS))s] $*"; }

missing=()
while read -r program package; do
  command -v "$program" > /dev/null || missing+=("$package")
done <<'LIST'
qemu-system-x86_64 qemu-system-x86
mmdebstrap mmdebstrap
mke2fs e2fsprogs
cpio cpio
busybox busybox-static
LIST
if [ ${#missing[@]} -gt 0 ]; then
  say "installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get -q -o DPkg::Lock::Timeout=600 update
  apt-get -q -y -o DPkg::Lock::Timeout=600 install --no-install-recommends "${missing[@]}"
fi

# This machine's package sources, and contrib, where ZFS is.
if [ -s /etc/apt/sources.list.d/debian.sources ]; then
  sed -E '/^Components:/{/contrib/!s/$/ contrib/}' /etc/apt/sources.list.d/debian.sources > sources.in
else
  sed -nE '/^deb .* main/{/contrib/!s/ main/ main contrib/;p}' /etc/apt/sources.list > sources.in
fi
apt-config dump | grep -E '^Acquire::(Check|http|https|Retries|ForceIPv4)' > apt.opts || true

# system FOLDER PACKAGES [more options]: a Debian of its own.
system() {
  local to=$1 packages=$2
  shift 2
  # A build that was ended in the middle leaves what it had mounted there.
  awk -v under="$to/" 'index($2, under) == 1 { print $2 }' /proc/mounts | sort -r | xargs -r -n 1 umount
  rm -rf --one-file-system "$to"
  DEBIAN_FRONTEND=noninteractive mmdebstrap --quiet --mode=root --variant=minbase --skip=cleanup/apt --aptopt="$dir/apt.opts" \
    --aptopt='APT::Install-Recommends "false"' --keyring=/usr/share/keyrings/debian-archive-keyring.gpg \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='force-unsafe-io' \
    --include="$packages" "$@" "$suite" "$to" sources.in
}

say "root file system, in the background"
root=$dir/root.d
system "$root" kmod,udev,systemd,iproute2,procps,zfsutils-linux,postgresql-15,qemu-guest-agent,libnbd-bin > root.log 2>&1 &
root_pid=$!

if [ ! -s modules.tar ]; then
  build=$dir/build.d
  say "compilers"
  system "$build" linux-headers-cloud-amd64,linux-image-cloud-amd64-,build-essential,kmod,ca-certificates \
    --customize-hook='chroot "$1" sh -c "cd /srv; apt-get -q update && apt-get -q download zfs-dkms && dpkg-deb -x zfs-dkms_*.deb zfs"' \
    --customize-hook='chroot "$1" sh -c "cd /srv; k=\$(ls /lib/modules | head -1); apt-get -q download linux-image-\$k && dpkg-deb -x linux-image-*.deb linux"'
  kernel=$(ls "$build/srv/linux/lib/modules")
  source=$(basename "$(echo "$build"/srv/zfs/usr/src/zfs-*)")
  say "compiling $source for $kernel"
  cat > "$build/srv/compile" <<SCRIPT
set -e
cd /srv/zfs/usr/src/$source
./configure --disable-dependency-tracking --with-config=kernel --with-linux=/lib/modules/$kernel/source \
  --with-linux-obj=/lib/modules/$kernel/build > /srv/compile.log 2>&1
make -j$jobs >> /srv/compile.log 2>&1
to=/srv/linux/lib/modules/$kernel/extra
mkdir -p \$to
find module -name '*.ko' -exec cp {} \$to/ \;
strip --strip-debug \$to/*.ko
depmod -b /srv/linux $kernel
SCRIPT
  mount -t proc proc "$build/proc"
  compiled=0
  chroot "$build" bash /srv/compile || compiled=$?
  umount "$build/proc"
  if [ $compiled != 0 ]; then
    tail -20 "$build/srv/compile.log"
    exit 1
  fi
  cp "$build/srv/linux/boot/vmlinuz-$kernel" vmlinuz
  echo "Linux $kernel, $source" > modules.version
  tar -C "$build/srv/linux" -cf modules.new lib/modules
  mv modules.new modules.tar
  rm -rf --one-file-system "$build"
fi
say "$(cat modules.version)"

wait "$root_pid" || { tail -20 root.log; exit 1; }
tar -C "$root/usr" -xf modules.tar
install -m 755 "$here/init" "$root/sbin/holdfast-guest"
# With holdfast.init=systemd the same script is two units, and nothing runs beside what a test starts.
units=$root/etc/systemd/system
mkdir -p "$units/multi-user.target.wants" "$root/etc/systemd/system.conf.d"
cat > "$units/holdfast-guest-setup.service" <<'UNIT'
[Unit]
Description=Modules, network and program of the guest
Wants=network.target
Before=network.target network-online.target
After=systemd-udev-trigger.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/sbin/holdfast-guest setup
# As on other machines: whoever needs the network to end in good order has to have ended before.
ExecStop=/bin/ip link set eth0 down
UNIT
cat > "$units/holdfast-guest.service" <<'UNIT'
[Unit]
Description=The host talks to the guest through this
After=holdfast-guest-setup.service

[Service]
ExecStart=/sbin/holdfast-guest serve
UNIT
ln -s ../holdfast-guest-setup.service ../holdfast-guest.service "$units/multi-user.target.wants/"
for unit in qemu-guest-agent.service timers.target getty.target systemd-logind.service; do
  ln -sf /dev/null "$units/$unit"
done
# An emulated machine is late with everything.
printf '[Manager]\nDefaultTimeoutStartSec=10min\n' > "$root/etc/systemd/system.conf.d/guest.conf"
# PostgreSQL does not come up by itself (docs/operating/agent.md).
echo manual > "$root/etc/postgresql/15/main/start.conf"
rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/var/lib/postgresql/15/main
# A third of the image, for compiling queries: without it PostgreSQL does not.
rm -rf "$root"/usr/lib/postgresql/15/lib/{bitcode,llvmjit*} "$root"/usr/lib/x86_64-linux-gnu/libLLVM*
echo '127.0.0.1 localhost' > "$root/etc/hosts"
say "image"
rm -f rootfs.img
mke2fs -q -t ext4 -O ^has_journal -m 0 -d "$root" rootfs.img 1600M
rm -rf --one-file-system "$root"

# A first file system in memory that finds the virtio disk and goes on there.
first=$dir/first.d
rm -rf "$first"
mkdir -p "$first"/{bin,proc,sys,dev,root,modules}
cp "$(command -v busybox)" "$first/bin/busybox"
modules="virtio_ring virtio virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci virtio_blk"
for module in $modules; do
  path=$(tar -tf modules.tar | grep "/$module\.ko$" || true)
  [ -z "$path" ] || tar -xOf modules.tar "$path" > "$first/modules/$module.ko"
done
cat > "$first/init" <<SCRIPT
#!/bin/busybox sh
b=/bin/busybox
\$b mount -t proc proc /proc
\$b mount -t sysfs sys /sys
\$b mount -t devtmpfs dev /dev
for module in $modules; do
  [ ! -f /modules/\$module.ko ] || \$b insmod /modules/\$module.ko
done
n=0
while [ ! -b /dev/vda ] && [ \$n -lt 200 ]; do \$b sleep 0.1; n=\$((n+1)); done
\$b mount -t ext4 -o rw,noatime /dev/vda /root || \$b poweroff -f
\$b umount /dev /sys /proc
exec \$b switch_root /root /sbin/holdfast-guest
SCRIPT
chmod +x "$first/init"
(cd "$first" && find . | cpio -o -H newc --quiet | gzip -1) > initrd.gz
rm -rf "$first"
say "done"
