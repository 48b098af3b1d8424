"""How fast a program could be without something: its recorded dependencies, replayed.

A host launches work, which starts when it has been launched, its stream is free and what it waits
for on another stream is done; where the host waits, it goes on when the device has done what it
waits for; a collective ends after the last rank has arrived. With some of the host's time, of the
device's or of the waits taken out, everything else follows as early as these dependencies let it,
and the new length is a bound: no fix of that alone can be faster. It never beats the longer of the
host's own time and the device's.

Amdahl's law on idle time is no such bound: a wait that is removed gains nothing where the host has
as much else to do, and a delay of one rank costs all of them.
"""
