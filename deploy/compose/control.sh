# Makes the key that opens the nodes, and waits for `docker compose exec control jepsen ...`.
set -e
umask 077
[ -e /root/.ssh/id_ed25519 ] || ssh-keygen -q -t ed25519 -N '' -C control -f /root/.ssh/id_ed25519
umask 022
cp /root/.ssh/id_ed25519.pub /keys/new
mv /keys/new /keys/authorized_keys
exec sleep infinity
