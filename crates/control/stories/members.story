# Members, their disks and their lives.
init cluster=0
init cluster=77
init cluster=77
init cluster=78
join id=1 name=g1 disk=101 req=1
join name=g2 disk=102 req=2
join name=g2 disk=102 req=2
----
refused: cluster id: found 00000000000000000000000000000000, expected 00000000000000000000000000000000: this is another cluster
the cluster has its id
the cluster has its id
refused: cluster id: found 0000000000000000000000000000004e, expected 0000000000000000000000000000004d: this is another cluster
added m1
added m2
added m2

# One disk, one member; one name, one member; no id twice.
join name=g3 disk=102 req=3
join name=g2 disk=103 req=4
join id=2 name=g3 disk=103 req=5
join id=7 name=g3 disk=103 req=6
join name=g4 disk=104 req=7
----
refused: disk 00000000000000000000000000000066 is that of member m2 already; a copied disk cannot be a second member
refused: a gateway named g2 is a member already: m2
refused: member id m2 was used before, the next one is m3: ids are never reused
added m7
added m8

# Removed for good: neither the id nor the disk comes back, also not by a late copy of the join.
remove id=8
remove id=8
remove id=9
join name=g4 disk=104 req=7
join id=8 name=g4 disk=105 req=8
join name=g4 disk=105 req=9
----
removed
removed
refused: m9 is not a member of this cluster
refused: disk 00000000000000000000000000000068 belonged to a member that was removed; wipe it, and it joins as a new one
refused: member id m8 was used before, the next one is m9: ids are never reused
added m9

# The last member stays.
remove id=1
remove id=2
remove id=7
remove id=9
update id=9 peer=10.0.0.9:7001
update id=7 peer=10.0.0.9:7001
----
removed
removed
removed
refused: m9 is the last member; it cannot be removed
updated
refused: m7 was removed from this cluster permanently; to use its machine again, give its gateway an empty data_dir and let it in as a new member (holdfast gateway add)

# Drained and back; replaced under the same name; leaving is final, and the last one that stays cannot leave.
join name=g10 disk=110 req=10
drain id=10
undrain id=10
undrain id=7
join name=g10 disk=111 req=11
join name=g10 disk=111 replaces=10 req=11
join name=g10 disk=111 replaces=10 req=11
undrain id=10
leave id=10
remove id=10
drain id=10
boot id=10 disk=110 count=3 nonce=1
leave id=11
leave id=9
----
added m10
so it is
so it is
refused: m7 was removed from this cluster permanently; to use its machine again, give its gateway an empty data_dir and let it in as a new member (holdfast gateway add)
refused: a gateway named g10 is a member already: m10
added m11
added m11
refused: m10 is leaving the cluster, which is final; let its gateway in again with an empty data_dir (holdfast gateway add)
so it is
removed
refused: m10 was removed from this cluster permanently; to use its machine again, give its gateway an empty data_dir and let it in as a new member (holdfast gateway add)
refused: m10 was removed from this cluster permanently; to use its machine again, give its gateway an empty data_dir and let it in as a new member (holdfast gateway add)
so it is
refused: m9 is the last member; it cannot be removed
