# A set's voters are changed only from those that were seen, to members that stay. A member that replaces a voter gets its place.
init cluster=77
join id=1 name=g1 disk=101 req=2
join name=g2 disk=102 req=3
join name=g3 disk=103 req=4
join name=g4 disk=104 req=5
create-set name=demo by=1 members=1,2,3 req=6
place set=1 from=1,2,3 to=2,3,4
place set=1 from=1,2,3 to=2,3,4
place set=1 from=1,2,3 to=1,2
place set=1 from=2,3,4 to=2,9
join name=g5 disk=105 req=7 replaces=2
place set=1 from=2,3,4 to=1,3,4
place set=1 from=3,4,5 to=2,3
place set=1 from=3,4,5 to=1,3,4
----
the cluster has its id
added m1
added m2
added m3
added m4
created g1, voters [1, 2, 3]
these are its voters
these are its voters
refused: somebody else changed the voters of set g1: found m2 m3 m4; look at them again, then repeat the request
refused: m9 is not a member of this cluster
added m5
refused: somebody else changed the voters of set g1: found m3 m4 m5; look at them again, then repeat the request
refused: m2 is leaving the cluster, which is final; let its gateway in again with an empty data_dir (holdfast gateway add)
these are its voters
