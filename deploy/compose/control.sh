# Makes the key that opens the nodes, and waits for `docker compose exec control jepsen ...`.
set -e
# Leiningen's jars outlive the container.
ln -sfn /var/lib/maven ~/.m2
mkdir -p /var/lib/jepsen
umask 077
[ -e /var/lib/jepsen/key ] || ssh-keygen -q -t ed25519 -N '' -C control -f /var/lib/jepsen/key
umask 022
cp /var/lib/jepsen/key.pub /keys/new
mv /keys/new /keys/authorized_keys
exec sleep infinity
