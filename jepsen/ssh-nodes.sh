#!/usr/bin/env bash
# Nodes for the Jepsen test that are reached over SSH, on one machine: each has a network, processes, files and an sshd of its own.
#
#   ssh-nodes.sh up                  makes them (root; one command, see jepsen/README.md)
#   ssh-nodes.sh test ARGUMENTS      one run of the test over SSH, e.g. --workload register --nemesis kill --time-limit 60
#   ssh-nodes.sh run COMMAND...      any command beside the nodes, where the test would run
#   ssh-nodes.sh down                ends them; nothing is left
#
#   HOLDFAST_SSH_NODES    where their files lie; the folder is made by `up` and taken away by `down` (/var/tmp/holdfast-ssh-nodes)
#   HOLDFAST_JEPSEN_CLASSPATH   for `test`: a file with a Java class path that has Jepsen; without one, `lein run`
#   NODES=5               for `up`: how many (3)
#
#   this machine
#     └─ room: the bridge 10.98.0.1, where `test` and `run` are ............ unshare: network, processes, mounts
#          ├─ n1 10.98.0.11 sshd     ├─ n2 10.98.0.12 sshd    ...            unshare again, in it
#          └─ s3 10.98.0.10 versitygw :7070, bucket holdfast
#
# No interface, mount or listening port is made outside of the room. It ends with its first process, and all in it with that one: `down` kills that
# process, by its number and the time at which it began. What a node writes is in its own folder; the
# rest of the root file system it can only read (other file systems that are mounted below it, it can write: a node is root).
set -euo pipefail

base=$(readlink -m "${HOLDFAST_SSH_NODES:-/var/tmp/holdfast-ssh-nodes}")
count=${NODES:-3}
net=10.98.0
user=root
s3_port=7070
bucket=holdfast
export AWS_ACCESS_KEY_ID=${AWS_ACCESS_KEY_ID:-jepsen} AWS_SECRET_ACCESS_KEY=${AWS_SECRET_ACCESS_KEY:-jepsen-secret}
self=$(readlink -f "${BASH_SOURCE[0]}")
isolated=(--net --pid --mount --fork --kill-child --mount-proc --propagation private)

die() { echo "ssh-nodes.sh: $*" >&2; exit 1; }

# A process id is reused; together with its start time it is not.
began() { sed 's/^.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }

# The room's `unshare`, if it still runs.
holder() {
    local pid time
    { read -r pid time <"$base/pid"; } 2>/dev/null || return 1
    [ -n "$time" ] && [ "$(began "$pid")" = "$time" ] && echo "$pid"
}

# The room's first process, as it is numbered outside.
inside() { local pid; pid=$(holder) && ps -o pid= --ppid "$pid" | tr -d ' ' | grep .; }

wait_for() { # SECONDS COMMAND...
    local until=$((SECONDS + $1)); shift
    until "$@"; do [ $SECONDS -lt $until ] || return 1; sleep 0.05; done
}

own_network() { [ "$(readlink "/proc/$1/ns/net")" != "$(readlink /proc/self/ns/net)" ]; }
answers() { (exec 3<>"/dev/tcp/$1/$2") 2>/dev/null; }
has_link() { ip link show eth0 >/dev/null 2>&1; }

names() { for i in $(seq "$count"); do echo "n$i $net.$((10 + i))"; done; }

up() {
    local why=()
    [ "$(id -u)" = 0 ] || die "this makes namespaces: run it as root"
    ! holder >/dev/null || die "they are up already, in $base: ssh-nodes.sh down ends them"
    [ ! -e "$base" ] || die "$base is left from an earlier time: ssh-nodes.sh down takes it away"
    while read -r program package; do
        [ -n "$(PATH=$PATH:/usr/sbin:/sbin type -P "$program")" ] || why+=("$program ($package)")
    done <<-END
		sshd openssh-server
		scp openssh-client
		sudo sudo
		iptables iptables
		ip iproute2
		ps procps
		start-stop-daemon dpkg
		versitygw go install github.com/versity/versitygw/cmd/versitygw@latest
	END
    [ ${#why[@]} = 0 ] || die "missing: $(printf '%s, ' "${why[@]}")in brackets the Debian package (docs: jepsen/README.md)"
    [[ $count =~ ^[1-9]$ ]] || die "NODES: found $count, expected 1 to 9"

    install -d -m 711 "$base"
    ssh-keygen -q -t ed25519 -N '' -C holdfast-jepsen -f "$base/key"
    echo "$count" >"$base/count"
    { printf '127.0.0.1 localhost\n%s.10 s3\n' "$net"; names | sed 's/\(.*\) \(.*\)/\2 \1/'; } >"$base/hosts"
    # shellcheck disable=SC2016  # expanded inside
    setsid -f bash -c 'echo $$ "$(sed "s/^.*) //" /proc/$$/stat | cut -d" " -f20)" >"$1/pid"; shift; exec "$@"' up \
        "$base" unshare "${isolated[@]}" bash "$self" room "$base" "$count" </dev/null >"$base/room.log" 2>&1
    wait_for 30 test -e "$base/ready" || { tail -n 20 "$base/room.log" >&2; down; die "the nodes did not come up"; }
    echo "up: $(names | cut -d' ' -f2 | paste -sd,), user $user, key $base/key, store s3://$bucket at http://$net.10:$s3_port"
}

# The first process of the room: makes the nodes, then waits and reaps orphans.
room() {
    ip link set lo up
    ip link add br0 type bridge
    ip addr add "$net.1/24" dev br0
    ip link set br0 up
    mount --bind "$base/hosts" /etc/hosts
    # scp records the nodes' host keys: not in the known_hosts of the person who runs this.
    mount -t tmpfs none /etc/ssh/ssh_config.d
    printf 'Host %s.* n1 n2 n3 n4 n5 n6 n7 n8 n9\n    UserKnownHostsFile %s/known_hosts\n    LogLevel ERROR\n' "$net" "$base" \
        >/etc/ssh/ssh_config.d/nodes.conf
    while read -r name address; do join "$name" "$address"; done < <(echo "s3 $net.10"; names)
    wait_for 20 answers "$net.10" "$s3_port"
    for i in $(seq "$count"); do wait_for 20 answers "$net.$((10 + i))" 22; done
    touch "$base/ready"
    wait
}

join() { # NAME ADDRESS
    local pid
    unshare "${isolated[@]}" --uts --ipc bash "$self" node "$base" "$1" &
    pid=$!
    wait_for 10 own_network $pid
    ip link add "ve-$1" type veth peer name tmp0 netns "$pid"
    ip link set "ve-$1" master br0 up
    nsenter --net --target "$pid" sh -c "ip link set lo up && ip addr add $2/24 dev tmp0 && ip link set tmp0 name eth0 up"
}

# The first process of a node.
node() {
    local name=$1 home=$base/$1
    hostname "$name"
    install -d -m 755 "$home" "$home/run" "$home/run/sshd" "$home/ssh" "$home/var-lib-sudo"
    install -d -m 700 "$home/root"
    install -d -m 1777 "$home/tmp" "$home/var-tmp"
    cp "$base/hosts" "$home/hosts"
    # No valid password, but not locked either: sshd refuses locked accounts.
    sed 's/^root:[^:]*:/root:*:/' /etc/shadow >"$home/shadow"
    chmod 600 "$home/shadow"
    if [ "$name" != s3 ]; then
        ssh-keygen -q -t ed25519 -N '' -f "$home/ssh/ssh_host_ed25519_key"
        cp "$base/key.pub" "$home/ssh/authorized_keys"
        cat >"$home/ssh/sshd_config" <<-END
			HostKey /etc/ssh/ssh_host_ed25519_key
			AuthorizedKeysFile /etc/ssh/authorized_keys
			PermitRootLogin prohibit-password
			PasswordAuthentication no
			KbdInteractiveAuthentication no
			UsePAM no
			MaxStartups 100
			Subsystem sftp internal-sftp
			PidFile none
		END
    else
        install -d "$home/tmp/store/$bucket"
    fi
    # Last, since this mount may cover the nodes' folders.
    mount --bind "$home/hosts" /etc/hosts
    mount --bind "$home/shadow" /etc/shadow
    mount --bind "$home/ssh" /etc/ssh
    mount --bind "$home/root" /root
    mount --bind "$home/run" "$(readlink -f /run)"
    [ ! -d /var/lib/sudo ] || mount --bind "$home/var-lib-sudo" /var/lib/sudo
    exec 8<"$home/tmp" 9<"$home/var-tmp"
    mount --bind /proc/self/fd/9 /var/tmp
    mount --bind /proc/self/fd/8 /tmp
    exec 8<&- 9<&-
    [ ! -e "$base/key" ] || mount -t tmpfs none "$base"
    # The mounts above are not concerned: what is this machine's can be read, what is the node's own can be written.
    mount -o remount,bind,ro /
    cd /tmp
    wait_for 20 has_link
    if [ "$name" = s3 ]; then
        ROOT_ACCESS_KEY=$AWS_ACCESS_KEY_ID ROOT_SECRET_KEY=$AWS_SECRET_ACCESS_KEY \
            versitygw --keep-alive --port ":$s3_port" posix /tmp/store &
    else
        "$(PATH=$PATH:/usr/sbin:/sbin type -P sshd)" -D -e &
    fi
    # Stays as the first process, to reap orphans.
    wait
}

run() {
    local pid
    pid=$(inside) || die "they are not up: ssh-nodes.sh up"
    # shellcheck disable=SC2016  # expanded inside
    exec nsenter --target "$pid" --net --pid --mount setpriv --pdeathsig KILL \
        bash -c 'cd "$1" && shift && exec "$@"' run "$PWD" "$@"
}

run_test() {
    local how=(lein run)
    count=$(cat "$base/count" 2>/dev/null) || die "they are not up: ssh-nodes.sh up"
    if [ -n "${HOLDFAST_JEPSEN_CLASSPATH:-}" ]; then
        how=(java -Xmx3g -Djava.awt.headless=true -cp "$(dirname "$self")/src:$(cat "$HOLDFAST_JEPSEN_CLASSPATH")" clojure.main -m jepsen.holdfast.cli)
    fi
    run "${how[@]}" test --nodes "$(names | cut -d' ' -f2 | paste -sd,)" --username $user --ssh-private-key "$base/key" \
        --store "s3://$bucket/jepsen" --s3-endpoint "http://$net.10:$s3_port" --concurrency 12 "$@"
}

down() {
    local pid
    if pid=$(holder); then
        # unshare kills its child, the room's first process, as it dies.
        kill -KILL "$pid"
        gone() { [ ! -e "/proc/$1" ]; }
        wait_for 20 gone "$pid" || die "process $pid does not end"
    fi
    if [ -e "$base" ]; then
        [ -e "$base/key" ] || die "$base: found no key of ours in it, so it is not taken away"
        rm -rf --one-file-system "$base"
    fi
}

case ${1:-} in
    up) up ;;
    test) shift; run_test "$@" ;;
    run) shift; run "$@" ;;
    down) down ;;
    room) base=$2 count=$3; room ;;
    node) base=$2; node "$3" ;;
    *) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$self"; exit 2 ;;
esac
