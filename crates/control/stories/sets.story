# Sets of the cluster. A set's first voters are all members, or those that were named.
init cluster=77
create-set name=demo by=1 req=1
join id=1 name=g1 disk=101 req=2
join name=g2 disk=102 req=3
join name=g3 disk=103 req=4
create-set name=demo by=1 req=5
create-set name=demo by=1 req=5
create-set name=demo by=2 req=6
create-set name=small by=2 members=3,2 req=7
create-set name=other by=1 members=2,2 req=8
create-set name=other by=1 members=2,9 req=8
create-set name=other by=9 req=8
create-set name=other by=1 store= req=8
create-set name=other by=1 req=8 base=500
----
the cluster has its id
refused: the first members of a set must be at least one, each once; found []
added m1
added m2
added m3
created g1, voters [1, 2, 3]
created g1, voters [1, 2, 3]
refused: a set named demo exists already: g1
created g2, voters [2, 3]
refused: the first members of a set must be at least one, each once; found [MemberId(2), MemberId(2)]
refused: m9 is not a member of this cluster
refused: m9 is not a member of this cluster
refused: store URL: found 0 bytes, expected 1 to 2048
created g3, voters [1, 2, 3]

# The key is wrapped anew; what it wraps does not change.
swap-keys set=2 key=2
swap-keys set=2 key=2 bytes=0
swap-keys set=2 key=2 bytes=4097
swap-keys set=9 key=2
----
rewrapped
refused: wrapped key: found 0 bytes, expected 1 to 4096
refused: wrapped key: found 4097 bytes, expected 1 to 4096
refused: the cluster has no set g9
