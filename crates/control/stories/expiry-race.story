# The leader judges by its own clock, but the state decides: a renewal that comes in between is worth more.
gateway gw=1
leader gw=1 term=1
now ms=1000
acquire owner=pg-a gw=1 token=1 req=1 ttl=3000
now ms=3999
judge gw=1
now ms=4000
judge gw=1
----
t1-i1: first entry of the term
i2: granted pg-a at m1 under e2, token 1, renewed i2, since 2026-11-18T11:06:41Z
not expired
expired: judged=2/2

# The judged moment names the renewal that it saw. A renewal is appended before the acquire: refused.
renew epoch=2
acquire owner=pg-b gw=1 token=2 req=2 judged=2/2
judge gw=1
----
i3: renewed
i4: refused: the set is held by pg-a at gateway m1 since 2026-11-18T11:06:41Z (epoch e2); wait until the lease is released or expires, or take it by force
not expired

# Any write renews as well, also a duplicate.
now ms=6900
write epoch=2 seq=1
now ms=7000
judge gw=1
now ms=9900
judge gw=1
write epoch=2 seq=1
acquire owner=pg-b gw=1 token=2 req=2 judged=2/5
----
i5: applied
not expired
expired: judged=2/5
i6: success, nothing changed (applied before)
i7: refused: the set is held by pg-a at gateway m1 since 2026-11-18T11:06:41Z (epoch e2); wait until the lease is released or expires, or take it by force

# The other way round: the acquire comes first, and the renewal is fenced.
now ms=12900
judge gw=1
acquire owner=pg-b gw=1 token=2 req=2 judged=2/6
renew epoch=2
write epoch=2 seq=2
----
expired: judged=2/6
i8: granted pg-b at m1 under e8, token 2, renewed i8, since 2026-11-18T11:06:52Z
i9: refused: fenced: found epoch e2, the set is held under epoch e8
i10: refused: fenced: found epoch e2, the set is held under epoch e8

# A judgement of an earlier lease does not end a later one.
acquire owner=pg-c gw=1 token=3 req=3 judged=2/6
state
----
i11: refused: the set is held by pg-b at gateway m1 since 2026-11-18T11:06:52Z (epoch e8); wait until the lease is released or expires, or take it by force
pg-b at m1 under e8, token 2, renewed i8, since 2026-11-18T11:06:52Z; last s0 of e8; checkpoint none, none under way, 0 segments
