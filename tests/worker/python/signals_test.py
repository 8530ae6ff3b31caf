#!/usr/bin/env python3
"""Ctrl-C in every kind of wait, forks, and the end of the interpreter.

    signals_test.py FOLDER_OF_PROGRAMS FOLDER_OF_PACKAGE [unittest arguments]
"""

import signal
import time
import unittest

from shards import TIMEOUT_S, WithShards, in_python, millrace

import numpy as np

N = 64
HEAD = """
import os, sys, threading, numpy as np, millrace
addresses, name = sys.argv[1].split(","), sys.argv[2]
def connect(workers, worker=0, **options):
    job = millrace.JobConfig(name=name, workers=workers, select="none", **options)
    me = millrace.WorkerConfig(worker=worker, shards=addresses)
    return millrace.Session(job, me, [millrace.Tensor("w", 64)])
def connect_two(**options):
    second = []
    thread = threading.Thread(target=lambda: second.append(connect(2, 1, **options)))
    thread.start()
    first = connect(2, 0, **options)
    thread.join()
    return first, second[0]
ones = np.ones(64, np.float32)
def say(word):
    print(word, flush=True)
"""


class Processes(WithShards):
    def start(self, program):
        process = in_python(HEAD + program, ",".join(self.addresses), self.id().rsplit(".", 1)[-1])
        self.addCleanup(self.end, process)
        return process

    def end(self, process):
        if process.poll() is None:
            process.kill()
        process.communicate()

    def interrupted(self, program):
        """The program must end by KeyboardInterrupt, though its wait has no limit. It prints "ready" before the wait."""
        process = self.start(program)
        self.assertEqual(process.stdout.readline(), "ready\n", process.stderr.read() if process.poll() is not None else "")
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=TIMEOUT_S)
        self.assertIn("KeyboardInterrupt", error)
        return error

    def output(self, program):
        process = self.start(program)
        out, error = process.communicate(timeout=TIMEOUT_S)
        self.assertEqual(process.returncode, 0, error)
        return out.split("\n")[:-1], error

    def test_CtrlC_EndsConnect(self):
        self.interrupted('say("ready")\nconnect(2)')

    def test_CtrlC_EndsWaitAndPush(self):
        for call in ('first.wait("w", 0)', 'first.push("w", ones)', 'first.wait_into("w", 0, ones, timeout=None)',
                     "first.wait_list().write(timeout=None)", "first.finish()"):
            with self.subTest(call=call):
                self.interrupted(f'first, second = connect_two()\nfirst.push("w", ones)\nsay("ready")\n{call}')

    def test_CtrlC_EndsPull(self):
        """The weights of steps that nothing pushes; and first weights, which wait for the worker with the least number."""
        self.interrupted('first, second = connect_two(store="sgd:0.5", store_begin="worker")\nsay("ready")\n'
                         "second.place_weights([ones], timeout=None)")
        for call in ('session.pull_rows("w", 4, np.array([2]), ones[:4], at_least_step=9, timeout=None)',
                     'session.pull("w", ones, at_least_step=9, timeout=None)', 'session.pull_indices("w", np.array([3]), ones[:1], at_least_step=9, timeout=None)'):
            with self.subTest(call=call):
                self.interrupted(f'session = connect(1, store="sgd:0.5")\nsay("ready")\n{call}')

    def test_Close_EndsThePullOfAnotherThread(self):
        lines, _ = self.output("""
session = connect(1, store="sgd:0.5")
def pull():
    say("pulls")
    try:
        session.pull("w", ones, at_least_step=9, timeout=None)
    except millrace.JobError as error:
        say(error)
thread = threading.Thread(target=pull)
thread.start()
session.close()
thread.join()
""")
        self.assertEqual(lines[0], "pulls")
        self.assertRegex(lines[1], "the session is closed")

    def test_EndOfTheProgram_WithAPullOfAnotherThread(self):
        """No thread of the library may ask for the interpreter's lock at its end."""
        lines, error = self.output("""
session = connect(1, store="sgd:0.5")
threading.Thread(target=lambda: session.pull("w", ones, at_least_step=9, timeout=None), daemon=True).start()
say("ends")
""")
        self.assertEqual(lines, ["ends"])
        self.assertNotIn("FATAL", error)

    def test_ForkedChild_MayNotUseTheSession(self):
        out, _ = self.output('''
session = connect(1)
step = session.push("w", ones)
child = os.fork()
if child == 0:
    for call in (lambda: session.push("w", ones), lambda: session.wait("w", 0), session.stats, session.finish):
        try:
            call()
        except millrace.JobError as error:
            print(error.code, "forked" in str(error))
    session.close()
    del session
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
print(session.wait("w", step).step, session.wait("w", session.push("w", ones)).step)
session.finish()
''')
        self.assertEqual(out, ["invalid_argument True"] * 4 + ["0 1"])

    def test_ForkedChild_MayConnectOnItsOwn(self):
        out, _ = self.output('''
first = connect(1)
child = os.fork()
if child == 0:
    name += "Child"
    with connect(1) as session:
        print(session.wait("w", session.push("w", ones)).step)
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
first.finish()
print("done")
''')
        self.assertEqual(out, ["0", "done"])

    def test_EndOfTheProgram_NeedsNoClose(self):
        out, error = self.output('''
import logging
logging.basicConfig(level=logging.DEBUG)
first, second = connect_two()
first.push("w", ones)
threading.Thread(target=lambda: first.wait("w", 0), daemon=True).start()
say("ended")
''')
        self.assertEqual(out, ["ended"])
        self.assertNotIn("terminate", error)


if __name__ == "__main__":
    unittest.main()
