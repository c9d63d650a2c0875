# A set is deleted while one of three gateways is away.
init cluster=77
join id=1 name=g1 disk=101 req=1
join name=g2 disk=102 req=2
join name=g3 disk=103 req=3
create-set name=demo store=file:///s by=1 req=4
----
the cluster has its id
added m1
added m2
added m3
created g1, voters [1, 2, 3]

# Asked twice, it is one deletion.
delete-set set=1 name=demo req=5
delete-set set=1 name=demo req=5
create-set name=demo store=file:///s by=1 req=6
----
g1 is being deleted, or was
g1 is being deleted, or was
refused: a set named demo is being deleted (g1): its name is free once `holdfast set list` does not show it any more

# Its key stays until those that could still agree to something are no majority.
set-ended set=1 gw=1 at=1-3 voters=1,2,3
forget-set set=1
set-ended set=1 gw=2 at=1-3 voters=1,2,3
forget-set set=1
forget-set set=1
----
noted
refused: set g1 may still be served: m2 m3 have not ended its group
noted
noted
noted

# The store is empty: the name is free. Of the gateway that is away something may come still.
set-emptied set=1 ended=1,2
deletions
create-set name=demo store=file:///s by=1 req=6
----
noted
g1 Emptied, no key, waits for [m3]
created g2, voters [1, 2, 3]

# It comes back, and ends the group too; the store is looked at once more.
set-ended set=1 gw=3 at=1-2 voters=1,2
set-emptied set=1 ended=1,2
deletions
set-emptied set=1 ended=1,2,3
deletions
----
noted
noted
g1 Emptied, no key, waits for []
noted
none

# Late copies make nothing and take nothing.
create-set name=demo store=file:///s by=1 req=4
delete-set set=1 name=demo req=5
forget-set set=1
delete-set set=9 name=demo req=5
delete-set set=2 name=other req=7
----
refused: this request made set g1, which was deleted since: draw a new one
g1 is being deleted, or was
noted
refused: the cluster has no set g9
refused: set g2: found the name other, expected demo: the number belongs to another set
