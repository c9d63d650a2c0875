# A plain export takes a free lease, and gives it back when its last connection closes.
acquire owner=plain/m1:7 gw=1 token=1 req=1 plain
write epoch=1 seq=1
acquire owner=plain/m1:8 gw=1 token=2 req=2 plain
acquire owner=pg-a gw=1 token=2 req=3
release epoch=1
state
----
i1: granted plain/m1:7 at m1 under e1, token 1, renewed i1, since 2026-11-18T11:06:40Z, plain
i2: applied
i3: refused: the set is held by plain/m1:7 at gateway m1 since 2026-11-18T11:06:40Z (epoch e1, plain export); wait until the lease is released or expires, or take it by force
i4: refused: the set is held by plain/m1:7 at gateway m1 since 2026-11-18T11:06:40Z (epoch e1, plain export); wait until the lease is released or expires, or take it by force
i5: released
free; last s1 of e1; checkpoint none, none under way, 0 segments

# It never continues: a host that comes back with a stale cache must not replay over another's writes.
acquire owner=plain/m1:8 gw=1 token=2 req=4 plain
continue owner=plain/m1:8 gw=2 token=2 new=3 req=5
continue owner=plain/m1:8 gw=2 token=2 new=3 req=4
write epoch=6 seq=1
----
i6: granted plain/m1:8 at m1 under e6, token 2, renewed i6, since 2026-11-18T11:06:40Z, plain
i7: refused: the lease (epoch e6) belongs to a plain export, which never continues: acquire it again
i8: refused: the lease (epoch e6) belongs to a plain export, which never continues: acquire it again
i9: applied

# The connection ended with a write still on its way: it finds no lease, also when the set is taken anew.
release epoch=6
write epoch=6 seq=2
acquire owner=plain/m1:9 gw=1 token=4 req=6 plain
write epoch=6 seq=2
release epoch=6
write epoch=12 seq=1
----
i10: released
i11: refused: fenced: found epoch e6, nobody holds the set
i12: granted plain/m1:9 at m1 under e12, token 4, renewed i12, since 2026-11-18T11:06:40Z, plain
i13: refused: fenced: found epoch e6, the set is held under epoch e12
i14: refused: fenced: found epoch e6, the set is held under epoch e12
i15: applied
