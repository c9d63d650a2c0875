# gateway NAME: runs a gateway of that name, which is also its host's.   found NAME...: makes one cluster of these gateways, with a set and a volume.
set -eu -o pipefail

key=${KEY_DIR:-/key}/cluster.key
dir=${DATA_DIR:-/var/lib/holdfast}
what=$1
shift

# The first who comes makes it, whole or not at all; the others take that one.
if [ ! -e "$key" ]; then
    (umask 077; od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$key.$HOSTNAME")
    ln "$key.$HOSTNAME" "$key" 2>/dev/null || true
    rm "$key.$HOSTNAME"
fi

case $what in
    gateway)
        mkdir -p "$dir/data"
        cat >"$dir/gateway.toml" <<-END
			name = "$1"
			data_dir = "$dir/data"
			api_listen = "0.0.0.0:7400"
			peer_listen = "0.0.0.0:7401"
			nbd_listen = "0.0.0.0:10809"
			plain_exports = true
			snapshot_exports = "open"
			plaintext_network = true
			[advertise]
			api = "$1:7400"
			peer = "$1:7401"
			nbd = "$1:10809"
			[journal]
			bound = "2GiB"
			reserve = "256MiB"
			[cache]
			memory = "128MiB"
			disk = "0B"
			[key]
			file = "$key"
		END
        exec holdfast gateway run --config "$dir/gateway.toml"
        ;;
    found)
        mkdir -p "$dir"
        {
            for name in "$@"; do printf '[[gateways]]\nname = "%s"\nregion = "local"\napi = "%s:7400"\n' "$name" "$name"; done
            echo '[[sets]]'
            echo 'name = "try"'
            echo "store = \"s3://holdfast/try?endpoint=${ENDPOINT:-http://s3:7070}&region=us-east-1\""
            echo 'volumes = { v0 = "10GiB" }'
        } >"$dir/cluster.toml"
        # They may not listen yet. Asked again for what is there already, the command says so and succeeds.
        for _ in $(seq 30); do
            if holdfast --api "$(printf '%s:7400,' "$@" | sed 's/,$//')" --timeout 10s cluster bootstrap --config "$dir/cluster.toml"; then exit 0; fi
            sleep 1
        done
        exit 1
        ;;
    *)
        echo "expected gateway NAME or found NAME..., found $what" >&2
        exit 2
        ;;
esac
