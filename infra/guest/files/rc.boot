#!/bin/sh
# Boot script of the demo guest: the NoCloud seed, as far as tests need it.
PATH=/usr/sbin:/usr/bin:/sbin:/bin
mark() { read -r up _ </proc/uptime; echo "@@hostler $* $up" >/dev/console; }
mark init
mount -t tmpfs -o mode=755,nosuid run /run
mkdir -p /run/sshd /dev/pts /dev/shm /run/seed /run/hostler
mount -t devpts -o gid=5,mode=620 devpts /dev/pts
mount -t tmpfs -o mode=1777 tmp /tmp
[ -d /sys/fs/cgroup ] && mount -t cgroup2 cg /sys/fs/cgroup 2>/dev/null
ip link set lo up
# modules of the devices that are here, then those that give the machine's buttons
modprobe -a isofs button evdev virtio_balloon virtio-rng pvpanic-pci qemu_fw_cfg vmw_vsock_virtio_transport 2>/dev/null
/usr/lib/hostler/bylinks
S=/run/seed; M=$S/md; U=$S/ud; V=$S/vd; N=$S/nc
get() { v=; [ -f "$1" ] && { v=$(cat "$1"; echo .); v=${v%.}; }; }   # whole text
one() { v=; [ -f "$1" ] && IFS= read -r v <"$1" || [ -n "$v" ]; }   # one line
# --- the seed: a disk whose label is cidata (any case)
# The label of an ISO 9660 image is read by hand: findfs gives up on images under 68 KiB.
d=
for b in /sys/block/vd[b-z] /sys/block/sr* /sys/block/sd* /sys/block/vda; do
    [ -e "$b" ] || continue
    case $(dd if="/dev/${b##*/}" bs=8 skip=4101 count=1 2>/dev/null) in
        CIDATA*|cidata*) d=/dev/${b##*/}; break ;;
    esac
done
[ "$d" ] || d=$(findfs LABEL=CIDATA 2>/dev/null) || d=$(findfs LABEL=cidata 2>/dev/null)
if [ -b "$d" ]; then
    mkdir -p /run/cidata
    if mount -o ro "$d" /run/cidata; then
        cp /run/cidata/* $S/
        umount /run/cidata
    fi
    for f in meta-data:$M network-config:$N; do
        [ -s "$S/${f%%:*}" ] && awk -v root="${f#*:}" -f /usr/lib/hostler/yaml2tree.awk "$S/${f%%:*}"
    done
    # Of user-data and vendor-data only "#cloud-config" is read; a script is run by "final".
    for f in user-data:$U vendor-data:$V; do
        s=$S/${f%%:*}; [ -s "$s" ] || continue
        IFS= read -r l1 <"$s"
        case $l1 in
            '#cloud-config-'*) ;;
            '#cloud-config'*) awk -v root="${f#*:}" -f /usr/lib/hostler/yaml2tree.awk "$s" ;;
        esac
    done
    # vendor-data holds where user-data says nothing: maps are merged, lists and words are not
    under() {
        for x in "$1"/*; do
            [ -e "$x" ] || continue
            y=$2/${x##*/}
            if [ ! -e "$y" ]; then mv "$x" "$y"
            elif [ -d "$x" ] && [ -d "$y" ] && [ ! -e "$x/0000" ] && [ ! -e "$y/0000" ]; then under "$x" "$y"; fi
        done
    }
    if [ -d $V ]; then if [ -d $U ]; then under $V $U; else rm -f $U; mv $V $U; fi; fi
    mark seed
fi
# --- every boot: name
h=; for f in $M/local-hostname $U/hostname $U/fqdn; do one $f && h=$v; done   # the last wins
h=${h:-guest}; hostname "${h%%.*}"; echo "${h%%.*}" >/etc/hostname
printf '127.0.0.1 localhost\n127.0.1.1 %s %s\n::1 localhost ip6-localhost\n' "$h" "${h%%.*}" >/etc/hosts
one $M/instance-id; iid=${v:-none}
old=; [ -f /var/lib/hostler/instance-id ] && read -r old </var/lib/hostler/instance-id
new=; [ "$iid" = "$old" ] || new=1
# --- once an instance: keys, users, passwords, files
if [ "$new" ]; then
    mkdir -p /var/lib/hostler /root/.ssh; chmod 700 /root/.ssh
    rm -f /etc/ssh/ssh_host_* /etc/ssh/sshd_config.d/50-hostcert.conf
    for k in ed25519 ecdsa rsa; do
        get $U/ssh_keys/${k}_private; [ "$v" ] || continue
        (umask 077; printf '%s' "$v" >/etc/ssh/ssh_host_${k}_key)
        get $U/ssh_keys/${k}_public; printf '%s' "$v" >/etc/ssh/ssh_host_${k}_key.pub
        get $U/ssh_keys/${k}_certificate
        [ "$v" ] && { printf '%s' "$v" >/etc/ssh/ssh_host_${k}_key-cert.pub
            echo "HostCertificate /etc/ssh/ssh_host_${k}_key-cert.pub" >>/etc/ssh/sshd_config.d/50-hostcert.conf; }
    done
    [ -f /etc/ssh/ssh_host_ed25519_key ] || ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key
    keys() { for f in "$1"/*; do [ -f "$f" ] && { cat "$f"; echo; }; done; }
    : >/root/.ssh/authorized_keys
    keys $U/ssh_authorized_keys >>/root/.ssh/authorized_keys
    keys $M/public-keys >>/root/.ssh/authorized_keys
    chmod 600 /root/.ssh/authorized_keys
    one $U/password && sed -i "s|^root:[^:]*:|root:$(mkpasswd -m sha512 "$v"):|" /etc/shadow
    uid=1000
    for d in $U/users/*/; do
        one ${d}name || continue
        u=$v; [ "$u" = default ] || [ "$u" = root ] && { [ "$u" = root ] && keys ${d}ssh_authorized_keys >>/root/.ssh/authorized_keys; continue; }
        while grep -q "^[^:]*:[^:]*:$uid:" /etc/passwd; do uid=$((uid+1)); done
        grep -q "^$u:" /etc/passwd || { echo "$u:x:$uid:$uid::/home/$u:/usr/lib/hostler/sh" >>/etc/passwd; echo "$u:x:$uid:" >>/etc/group; echo "$u:*:19000:0:99999:7:::" >>/etc/shadow; }
        one ${d}plain_text_passwd && sed -i "s|^$u:[^:]*:|$u:$(mkpasswd -m sha512 "$v"):|" /etc/shadow
        one ${d}passwd && sed -i "s|^$u:[^:]*:|$u:$v:|" /etc/shadow
        mkdir -p /home/$u/.ssh; keys ${d}ssh_authorized_keys >/home/$u/.ssh/authorized_keys
        chmod 700 /home/$u/.ssh; chown -R $u:$u /home/$u
    done
    for d in $U/write_files/*/; do
        one ${d}path || continue
        p=$v; mkdir -p "${p%/*}"
        one ${d}encoding; e=$v
        case $e in
            b64|base64) base64 -d <"${d}content" >"$p" ;;
            gz+b64|gz+base64|gzip+base64) base64 -d <"${d}content" | gunzip >"$p" ;;
            *) one ${d}append; if [ "$v" = true ]; then cat "${d}content" >>"$p"; else cat "${d}content" >"$p"; fi ;;
        esac
        one ${d}permissions && chmod "$v" "$p"
        one ${d}owner && chown "$v" "$p"
    done
fi
# --- every boot: a root that grew, extra volumes
root=$(while read -r a b c _; do [ "$b" = / ] && [ "$a" != rootfs ] && echo $a; done </proc/mounts)
root=/dev/$(basename "$(readlink -f /sys/dev/block/$(stat -c %d / | { read n; echo $((n/256)):$((n%256)); }))")
one $U/growpart/mode
if [ "$v" != off ] && [ -b "$root" ]; then
    sz=$(blockdev --getsize64 $root); was=0; [ -f /var/lib/hostler/rootsize ] && read -r was </var/lib/hostler/rootsize
    case $root in *[0-9]) /usr/lib/hostler/growpart $root && sz=$(blockdev --getsize64 $root) ;; esac
    [ "$sz" = "$was" ] || { resize2fs $root >/dev/null 2>&1 && echo $sz >/var/lib/hostler/rootsize; mark grown; }
fi
dev() { case $1 in LABEL=*|UUID=*) findfs "$1" ;; /dev/*) echo "$1" ;; *) echo "/dev/$1" ;; esac; }
for d in $U/fs_setup/*/; do
    one ${d}device || continue
    x=$(readlink -f "$(dev "$v")"); [ -b "$x" ] || continue
    one ${d}overwrite; ow=$v; one ${d}label; l=$v
    # only a disk whose start is all zero is taken as blank
    [ "$ow" = true ] && [ "$new" ] || [ "$(dd if="$x" bs=64k count=2 2>/dev/null | tr -d '\000' | wc -c)" -eq 0 ] || continue
    /sbin/mke2fs -q -F -t ext4 ${l:+-L "$l"} "$x"
done
for d in $U/mounts/*/; do
    one ${d}0000 || continue
    x=$(dev "$v"); one ${d}0001; p=$v; one ${d}0002; t=$v; one ${d}0003; o=$v
    mkdir -p "$p"; mount -t "${t:-auto}" -o "${o:-defaults}" "$x" "$p" || echo "hostler: mount of $x on $p failed" >/dev/console
done
# --- network: version 2 of network-config; DHCP on every card without one
/usr/lib/hostler/net $N
mark net
# each boot, before sshd reads its files
/usr/lib/hostler/commands $U/bootcmd </dev/null >/var/log/hostler-bootcmd.log 2>&1
[ "$new" ] && echo "$iid" >/run/hostler/new
# the rest runs beside sshd: DHCP may still be on its way
/usr/lib/hostler/final </dev/null >/var/log/hostler-final.log 2>&1 &
exit 0
