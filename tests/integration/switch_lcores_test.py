#!/usr/bin/env python3
"""millrace-switch on two lcores of DPDK, between network namespaces: net_af_packet with two queues, which the kernel fills by a hash of
addresses and ports, as a card's RSS does. Both lcores serve a job at the same time.

Takes the folder of the programs. Exits 77 (skipped, for ctest) where there are no namespaces, or no DPDK."""

import json

from switch_lab import BENCH, FAR, JOBS, NEAR, PROGRAM, SLOTS, TIMEOUT_S, WINDOW, OnDevice, inside, main


class TwoLcores(OnDevice):
    def setUp(self):
        super().setUp()
        self.write_jobs()
        self.make_link()

    def serve_two_loads(self, device):
        """Both lcores' status after both have served a load at the same time."""
        switch = self.start(*inside(FAR, PROGRAM, "run", "--listen", "10.78.0.1:7700", "--jobs", self.folder / "jobs.json", "--pmd",
                                    device, "--lcores", 2, "--http", "127.0.0.1:0", "--json"))
        line = json.loads(switch.stdout.readline())
        self.assertEqual(line["event"], "listening", line)
        self.assertEqual(line["addresses"], ["10.78.0.1:7700"])
        loads = [self.start(*inside(NEAR, BENCH, "load", "--to", line["addresses"][0], "--switch-job", number, "--from", "10.78.0.2:0", "--switch-slots", SLOTS,
                                    "--window-indices", WINDOW, "--duration", "2s")) for number in JOBS]
        for load in loads:
            out, err = load.communicate(timeout=TIMEOUT_S)
            self.assertEqual(load.returncode, 0, err)
            self.assertGreater(json.loads(out)["turns"], SLOTS, "no slot continued")
        lcores = self.lcores_after_a_load(line["http"])
        switch.terminate()
        self.assertEqual(switch.wait(timeout=TIMEOUT_S), 0)
        for lcore in lcores:
            for fault in ("bad_mac", "replay", "wrong_binding", "malformed_payload", "stranger"):
                self.assertNotIn(fault, lcore["events"])
        return lcores

    def test_EachLcoreServesItsJobThroughAQueueOfItsOwn(self):
        self.serve_two_loads("net_af_packet,iface=far,qpairs=2")

    def test_ALcoreWithoutAQueueServesForwardedPackets(self):
        self.serve_two_loads("net_af_packet,iface=far,qpairs=1")


if __name__ == "__main__":
    main()
