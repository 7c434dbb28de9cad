"""Compare the speed of Mnemo and of the published formulations in one process, after checking that both agree."""
