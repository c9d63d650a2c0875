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
i3: refused: a volume of this name exists already: id 1, size 1MiB
i4: refused: volume size: found 0B, expected 512B to 1PiB
i5: refused: volume size: found 1125899906843136B, expected 512B to 1PiB
i6: changed v1
i7: changed v1
i8: refused: growing cannot make a volume smaller: found 2096640B, expected at least its present 2MiB; use shrink
i9: refused: volume size: found 1125899906843136B, expected 512B to 1PiB
i10: refused: the set has no volume v3
