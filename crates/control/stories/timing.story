# All times, from one number. In milliseconds: one room, one city, one continent, two oceans, the bound.
timing rtt=1
timing rtt=10
timing rtt=30
timing rtt=80
timing rtt=250
timing rtt=1000
timing rtt=60000
timing rtt=0
----
rtt 1 heartbeat 100 election 300-600 lease 600 margin 120 read 480 embargo 660 look 30 gap 150 takeover 1342
rtt 10 heartbeat 100 election 300-600 lease 600 margin 120 read 480 embargo 660 look 30 gap 150 takeover 1369
rtt 30 heartbeat 116 election 350-700 lease 700 margin 140 read 560 embargo 770 look 35 gap 175 takeover 1651
rtt 80 heartbeat 283 election 850-1700 lease 1700 margin 340 read 1360 embargo 1870 look 85 gap 425 takeover 4023
rtt 250 heartbeat 850 election 2550-5100 lease 5100 margin 1020 read 4080 embargo 5610 look 255 gap 1275 takeover 12089
rtt 1000 heartbeat 3350 election 10050-20100 lease 20100 margin 4020 read 16080 embargo 22110 look 1005 gap 5025 takeover 47672
rtt 1000 heartbeat 3350 election 10050-20100 lease 20100 margin 4020 read 16080 embargo 22110 look 1005 gap 5025 takeover 47672
rtt 1 heartbeat 100 election 300-600 lease 600 margin 120 read 480 embargo 660 look 30 gap 150 takeover 1342
