#!/bin/bash
# Stands in for zpool, for one pool, in the tests. It keeps its state in a directory, and notes what it was told in the file did.
#   multihost  the pool has multihost=on: it is imported only where etc/hostid is there     imported  it was imported
#   broken     no import succeeds           unset  nothing can be set           unasked  no question is answered
#   unsure     what is set is set, and that ends as if it were not              forgets  what is set is not set, and that ends well
#   slow       an import does not end       logless  its log device is not there: it is imported with -m only
S=@STATE@
echo "$*" >> $S/did
case $1 in
import)
  [ -e $S/broken ] && { echo "cannot import: no such pool available" >&2; exit 1; }
  [ -e $S/slow ] && exec sleep 600
  if [ -e $S/logless ] && [[ " $* " != *" -m "* ]]; then
    printf "The devices below are missing or corrupted, use '-m' to import the pool anyway:\n\t    vdd1 [log]\n\n"
    echo "cannot import 'tank': one or more devices is currently unavailable" >&2
    exit 1
  fi
  [ -e $S/multihost ] && [ ! -e $S/../root/etc/hostid ] && { echo "stand-in: multihost without a host id" >&2; exit 1; }
  touch $S/imported
  ;;
get)
  [ -e $S/unasked ] && { echo "no answer" >&2; exit 1; }
  if [ -e $S/multihost ]; then echo on; else echo off; fi
  ;;
set)
  [ -e $S/unset ] && { echo "permission denied" >&2; exit 1; }
  [ -e $S/forgets ] && exit 0
  touch $S/multihost
  [ -e $S/unsure ] && { echo "interrupted" >&2; exit 1; }
  exit 0
  ;;
*) exit 2 ;;
esac
