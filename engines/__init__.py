"""Reading inference engines: which state they show, where, and how far it can be believed.

Nothing in this room knows of the gateway. `signals` is the vocabulary, `probes` the unit of
adapter code, `recipes` the probes trusted per engine kind, `plan` what one backend really
answers, `detect` the guess of the kind, `usage` the token counts out of replies.
"""
