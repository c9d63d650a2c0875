#!/bin/bash
# Stands in for zpool, zfs and zdb, by its own name, for copies of one pool of guid 11, in the tests. It keeps its state in a directory, and notes what it was told in did.
#   pools      name, guid and health of what is imported     datasets   what zfs list prints       gate   (a fifo) an import waits until something is written to it
#   multihost  pools have multihost=on                       broken     no import succeeds         same   no pool gets another guid
#   still      no pool writes anything                       busy       no pool is exported        suspended   no pool writes, and that is said
#   mute       the list of pools is not printed
S=@STATE@
me=$(basename "$0")
echo "$me $*" >> $S/did
fail() { echo "stand-in: $1" >&2; exit 1; }
last=${!#}
touch $S/pools
case "$me $1" in
"zdb -l")
  [ "$last" = /dev/blank ] && fail "failed to unpack label 0"
  printf "    name: 'tank'\n    pool_guid: 11\n    guid: 101\n        guid: 101\n        path: '/dev/nbd0'\n"
  ;;
"zpool list")
  if [ "$last" = name,guid,health ]; then [ -e $S/mute ] || cat $S/pools; exit; fi
  grep -q "^$last	" $S/pools || fail "no such pool"
  printf "$last\t1G\n\t/dev/loop99\t1G\n"
  ;;
"zpool import")
  [ -p $S/gate ] && read -r _ < $S/gate
  [ -e $S/broken ] && fail "no such pool available"
  printf "$last\t11\tONLINE\n" >> $S/pools
  ;;
"zpool reguid")
  [ -e $S/same ] && fail "no new guid"
  sed -i "s/^$last	11	/$last	12	/" $S/pools
  ;;
"zpool export")
  [ -e $S/busy ] && fail "pool is busy"
  sed -i "/^$last	/d" $S/pools
  ;;
"zpool get") if [ -e $S/multihost ]; then echo on; else echo off; fi ;;
"zpool set") rm -f $S/multihost ;;
"zpool sync")
  [ -e $S/still ] && fail "does not sync"
  [ -e $S/suspended ] && fail "cannot sync '$last': pool I/O is currently suspended"
  ;;
"zfs list") cat $S/datasets ;;
"zfs mount") ;;
*) exit 2 ;;
esac
exit 0
