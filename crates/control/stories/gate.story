# One gateway's gate, from start to cut-off (LAN: read lease 240 ms, election timeout 300 ms).
gateway gw=1
vote gw=1
read gw=1
now ms=329
vote gw=1
now ms=330
vote gw=1
----
must not
no, close: this gateway does not lead the set
must not
may

# Leader without a grant; then granted, but no quorum has answered since it was elected: an older answer proves nothing.
leader gw=1 term=2
read gw=1
acquire owner=pg-a gw=1 token=1 req=1
acked gw=1 sent=300
read gw=1
take-write gw=1
acked gw=1 sent=340
read gw=1
----
t2-i1: first entry of the term
no, close: no lease has been granted in term t2 yet
i2: granted pg-a at m1 under e2, token 1, renewed i2, since 2026-11-18T11:06:40Z
no, wait: no quorum of gateways has answered recently enough
yes, under e2
yes, under e2

# The read lease counts from the moment of sending. A write needs none: it is answered only once committed.
now ms=579
read gw=1
now ms=580
read gw=1
take-write gw=1
cut-off gw=1
now ms=880
cut-off gw=1
now ms=881
cut-off gw=1
read gw=1
take-write gw=1
----
yes, under e2
no, wait: no quorum of gateways has answered recently enough
yes, under e2
no
no
yes
no, close: no quorum of gateways has answered for 301ms, expected at most 300ms
no, close: no quorum of gateways has answered for 301ms, expected at most 300ms

# The quorum is back.
acked gw=1 sent=870
read gw=1
take-write gw=1
cut-off gw=1
----
yes, under e2
yes, under e2
no

# A transfer ends the term for this gateway, also when it fails; told again of the term, it still is over.
tell gw=1 event=transfer
read gw=1
take-write gw=1
tell gw=1 event=term term=2
read gw=1
----
no, close: leadership of term t2 is being handed over
no, close: leadership of term t2 is being handed over
no, close: leadership of term t2 is being handed over

# Elected again: a new term, a new epoch.
leader gw=1 term=4
acked gw=1 sent=890
now ms=900
read gw=1
continue owner=pg-a gw=1 token=1 new=2 req=2
read gw=1
release epoch=4
read gw=1
----
t4-i3: first entry of the term
no, close: no lease has been granted in term t4 yet
i4: granted pg-a at m1 under e4, token 2 (or token 1), renewed i4, since 2026-11-18T11:06:40Z
yes, under e4
i5: released
no, close: the lease of epoch e4 was released

# Lost, and told so.
tell gw=1 event=lost
read gw=1
tell gw=1 event=term term=4
read gw=1
----
no, close: this gateway does not lead the set
no, close: this gateway does not lead the set
