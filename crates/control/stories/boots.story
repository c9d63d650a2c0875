# CLUSTER-C3: a restored or a copied disk is found at its first start.
init cluster=77
join id=1 name=g1 disk=101 req=1
join name=g2 disk=102 req=2
boot id=1 disk=101 count=1 nonce=11
boot id=1 disk=101 count=1 nonce=11
boot id=1 disk=101 count=4 nonce=14
----
the cluster has its id
added m1
added m2
may take part
may take part
may take part

# A virtual machine was restored from a backup: its counter is one that was seen, or below.
boot id=1 disk=101 count=3 nonce=99
boot id=1 disk=101 count=4 nonce=99
----
refused: member m1 starts with boot counter 3, but 4 was seen: its disk was restored from an older copy; remove the member, wipe the disk, and join anew
refused: member m1 starts twice with boot counter 4: its disk was copied, or restored from an older copy; stop all but one, remove the member, wipe the disk, and join anew

# Cloned: both start with the next counter; the second is refused, and the first goes on.
boot id=1 disk=101 count=5 nonce=15
boot id=1 disk=101 count=5 nonce=16
boot id=1 disk=101 count=5 nonce=15
----
may take part
refused: member m1 starts twice with boot counter 5: its disk was copied, or restored from an older copy; stop all but one, remove the member, wipe the disk, and join anew
may take part

# A member on another disk, a stranger, and a member that was removed.
boot id=1 disk=102 count=6 nonce=17
boot id=9 disk=109 count=1 nonce=18
remove id=2
boot id=2 disk=102 count=1 nonce=12
----
refused: member m1 starts on disk 00000000000000000000000000000066, expected 00000000000000000000000000000065: this is not the disk that joined
refused: m9 is not a member of this cluster
removed
refused: m2 was removed from this cluster permanently; to use its machine again, give its gateway an empty data_dir and let it in as a new member (holdfast gateway add)
