#!/bin/sh
# One run over SSH, on the three nodes beside this container. What is given comes last, so it wins.
cd /jepsen || exit
exec lein run test --nodes n1,n2,n3 --username root --ssh-private-key /var/lib/jepsen/key \
    --store s3://holdfast/jepsen --s3-endpoint http://s3:7070 --concurrency 12 \
    --binary /usr/local/bin/holdfast --porcupine /usr/local/bin/porcupine --between /usr/local/bin/between --clock /usr/local/lib/clock "$@"
