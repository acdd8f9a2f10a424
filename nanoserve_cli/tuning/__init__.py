"""`nanoserve tune`: the best list for recorded traffic, and how honest that is.

evidence    what was recorded, cut into the part that is fitted and the part that is held out, load by load
gather      a source to evidence: read, simulated, cut
scoring     what a list costs on a part
candidates  the lists that others have, by name
fits        the optimal lists of a part, and one list for several loads
decision    which list is recommended, and why
report      everything scored, with the decision
feedback    lists under their own step time
cautions    what could make the recommended list slower than what is there
run         all of that as one call
verify      the proof on the engine, on stretches of the held-out part
"""
