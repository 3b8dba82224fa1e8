"""`baton bench overload` asks for more than two nodes can do, under each way to deal with it: what is still good?"""
