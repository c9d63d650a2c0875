# A gateway is paused past its lease. When it goes on, it does not know yet that another leads; its own clock must tell it.
gateway gw=1
gateway gw=2
leader gw=1 term=1
acquire owner=pg-a gw=1 token=1 req=1 ttl=3000
now ms=100
acked gw=1 sent=90
read gw=1
pause gw=1
----
t1-i1: first entry of the term
i2: granted pg-a at m1 under e2, token 1, renewed i2, since 2026-11-18T11:06:40Z
yes, under e2

# After the leader lease and an election timeout the others elect; the owner goes on there.
now ms=700
leader gw=2 term=2
continue owner=pg-a gw=2 token=1 new=2 req=2
now ms=710
acked gw=2 sent=705
read gw=2
write epoch=4 seq=1
----
t2-i3: first entry of the term
i4: granted pg-a at m2 under e4, token 2 (or token 1), renewed i4, since 2026-11-18T11:06:40Z
yes, under e4
i5: applied

# Gateway 1 wakes with a read ready to be answered: refused, since 240 ms have passed since the heartbeat was sent.
read gw=1
cut-off gw=1
take-write gw=1
----
no, close: no quorum of gateways has answered for 380ms, expected at most 300ms
yes
no, close: no quorum of gateways has answered for 380ms, expected at most 300ms

# At 330 ms its lease had run out; up to the election timeout after that its clients would have waited.
# A write that it took in before the pause is refused wherever it is applied.
write epoch=2 seq=1
----
i6: refused: fenced: found epoch e2, the set is held under epoch e4

# Then it hears what happened.
resume gw=1
read gw=1
take-write gw=1
----
no, close: this gateway does not lead the set
no, close: this gateway does not lead the set
