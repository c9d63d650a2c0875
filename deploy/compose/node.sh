# A host that Jepsen reaches over SSH. Its own keys are made here; whose key opens it, the control container says in /keys.
set -e
ssh-keygen -A
mkdir -p /run/sshd
exec /usr/sbin/sshd -D -e \
    -o AuthorizedKeysFile=/keys/authorized_keys \
    -o PermitRootLogin=prohibit-password \
    -o PasswordAuthentication=no \
    -o MaxStartups=100
