"""`nanoserve tune`: the best list for recorded traffic, and how honest that is.

evidence    what was recorded, cut into the part that is fitted and the part that is held out, load by load
scoring     what a list costs on a part
fits        the optimal lists of a part, and one list for several loads
candidates  the lists that others have, by name
report      everything scored, and what is recommended
"""
