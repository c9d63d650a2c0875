# A set that was recovered from its store starts above every epoch of its former life: an old gateway that wakes up is fenced.
new-set base=1000
write epoch=1000 seq=1
release epoch=1000
renew epoch=1000
acquire owner=pg-a gw=1 token=1 req=1
write epoch=700 seq=1
write epoch=1004 seq=1
----
i1: refused: fenced: found epoch e1000, nobody holds the set
i2: refused: fenced: found epoch e1000, nobody holds the set
i3: refused: fenced: found epoch e1000, nobody holds the set
i4: granted pg-a at m1 under e1004, token 1, renewed i4, since 2026-11-18T11:06:40Z
i5: refused: fenced: found epoch e700, the set is held under epoch e1004
i6: applied
