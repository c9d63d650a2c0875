# Volumes of a set: unique names, sizes that only grow, ids that are never reused.
create-volume name=vol1 sectors=2048
create-volume name=vol2 sectors=4096
create-volume name=vol1 sectors=4096
create-volume name=empty sectors=0
create-volume name=huge sectors=2199023255553
grow-volume volume=1 sectors=4096
grow-volume volume=1 sectors=4096
grow-volume volume=1 sectors=4095
grow-volume volume=1 sectors=2199023255553
grow-volume volume=3 sectors=4096
----
i1: changed v1
i2: changed v2
i3: refused: a volume of this name exists already: v1 of 2048 sectors
i4: refused: volume size: found 0 sectors, expected 1 to 2199023255552
i5: refused: volume size: found 2199023255553 sectors, expected 1 to 2199023255552
i6: changed v1
i7: changed v1
i8: refused: a volume cannot shrink: found 4095 sectors, it has 4096 already
i9: refused: volume size: found 2199023255553 sectors, expected 1 to 2199023255552
i10: refused: the set has no volume v3
