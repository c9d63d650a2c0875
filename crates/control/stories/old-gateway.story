# R6: a request stuck in the old gateway can never land after one made through the new.
gateway gw=1
gateway gw=2
leader gw=1 term=1
acquire owner=pg-a gw=1 token=1 req=1
write epoch=2 seq=1
----
t1-i1: first entry of the term
i2: granted pg-a at m1 under e2, token 1, renewed i2, since 2026-11-18T11:06:40Z
i3: applied

# Leadership moves. The new leader knows the lease, but serves it only under a new epoch.
leader gw=2 term=2
read gw=2
read gw=1
continue owner=pg-a gw=2 token=1 new=2 req=2
now ms=10
acked gw=2 sent=5
read gw=2
----
t2-i4: first entry of the term
no, close: the set is granted at gateway m1 under epoch e2
no, close: this gateway does not lead the set
i5: granted pg-a at m2 under e5, token 2 (or token 1), renewed i5, since 2026-11-18T11:06:40Z
yes, under e5

# What the old gateway had accepted comes late.
write epoch=2 seq=2
write epoch=5 seq=1
----
i6: refused: fenced: found epoch e2, the set is held under epoch e5
i7: applied

# Leadership comes back within the same lease: gateway 1 must not go on under its old epoch, nor under that of gateway 2.
leader gw=1 term=3
now ms=20
acked gw=1 sent=15
read gw=1
take-write gw=1
continue owner=pg-a gw=1 token=2 new=3 req=3
read gw=1
take-write gw=1
----
t3-i8: first entry of the term
no, close: the set is granted at gateway m2 under epoch e5
no, close: the set is granted at gateway m2 under epoch e5
i9: granted pg-a at m1 under e9, token 3 (or token 2), renewed i9, since 2026-11-18T11:06:40Z
yes, under e9
yes, under e9
