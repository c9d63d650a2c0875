# An S3 server over a directory, with an empty bucket `holdfast`.
set -e
mkdir -p /data/holdfast
exec versitygw --keep-alive --port :7070 posix /data
