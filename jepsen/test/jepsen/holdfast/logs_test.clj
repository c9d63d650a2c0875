(ns jepsen.holdfast.logs-test
  "Judges logs without a cluster, and without Jepsen: `clojure.main` with src and test
  on the class path is enough (README.md)."
  (:require [clojure.java.io :as io]
            [clojure.string :as str]
            [clojure.test :refer [deftest is run-tests testing]]
            [jepsen.holdfast.logs :as logs]))

(def unsynced #{"unsynced-all"})

(def golden
  "What g3 said in seed 1003 (order, unsynced-all), with the nemesis' marks: twice a
  place of its journal did not read back between a cut and the kill that followed."
  (delay (str/split-lines (slurp (io/file "test/logs/seed-1003.log")))))

(defn- r9s [lines] (filter #(str/includes? % "R9:") lines))

(deftest an-r9-that-the-switched-off-disk-explains
  (is (= 2 (count (r9s @golden))))
  (is (= [] (logs/alarms unsynced @golden))))

(deftest any-other-r9-is-an-alarm
  (let [[eio]  (r9s @golden)
        rotten "ERROR holdfast_gateway::node: R9: the journal has a bad record that was synced file=journal-02 offset=1835072 found=crc 0x9eef4abc"]
    (testing "of a disk that was on: before the cut, after it, or without one"
      (is (= [eio] (logs/alarms unsynced [eio logs/dark logs/light])))
      (is (= [eio] (logs/alarms unsynced [logs/dark logs/light eio])))
      (is (= [eio] (logs/alarms unsynced [eio])))
      (is (= (r9s @golden)
             (logs/alarms unsynced (remove #{logs/dark logs/light} @golden)))))
    (testing "between two cuts"
      (is (= [eio] (logs/alarms unsynced [logs/dark logs/light eio logs/dark eio]))))
    (testing "that is no EIO, also while the disk is off"
      (is (= [rotten] (logs/alarms unsynced [logs/dark rotten logs/light]))))
    (testing "under faults that switch no disk off"
      (is (= [eio] (logs/alarms #{"kill"} [eio]))))))

(deftest what-was-spoilt-is-named-from-then-on-and-there
  (let [rotten    "R9: the journal has a bad record that was synced"
        backwards "R11: this process exits: g2's log went backwards"
        of-it     "R9: a member has lost part of its log and asks to be removed group=3"
        leader    "R11: telling the member that it must exit group=g1 why=m2 says that it does not have t2-i537, which it had acknowledged: its log went backwards"
        alarms    logs/alarms]
    (is (= [] (alarms #{"corrupt" "kill-primary"} [logs/spoilt rotten])))
    (is (= [] (alarms #{"truncate"} [logs/spoilt rotten backwards])))
    (testing "before it, or at another node"
      (is (= [rotten] (alarms #{"corrupt"} [rotten logs/spoilt])))
      (is (= [backwards] (alarms #{"truncate"} [backwards logs/spoilt])))
      (is (= [rotten backwards] (alarms #{"truncate" "unsynced"} [rotten backwards]))))
    (testing "a flipped bit takes nothing away"
      (is (= [backwards] (alarms #{"corrupt"} [logs/spoilt backwards]))))
    (testing "what others say of that node"
      (is (= [] (alarms #{"truncate"} [of-it])))
      (is (= [of-it] (alarms #{"unsynced"} [of-it])))
      (is (= [] (alarms #{"truncate" "kill"} [leader])))
      (doseq [faults [#{"corrupt"} #{"unsynced"} #{"truncate" "unsynced"}]]
        (is (= [leader] (alarms faults [leader])) (pr-str faults))))))

(deftest what-is-an-alarm-whatever-was-done
  (doseq [faults [#{} #{"corrupt"} #{"truncate"} unsynced]
          line   ["thread 'main' panicked at src/x.rs:1:1:"
                  "an assertion failed"
                  "R1: an acknowledged write is gone"
                  "R11: this process exits"
                  "R12: unknown"]]
    (is (= [line] (logs/alarms faults [logs/dark logs/spoilt line])) (pr-str faults line)))
  (is (= [] (logs/alarms #{} ["INFO gateway runs" ""]))))

(defn -main [& _]
  (let [{:keys [fail error test]} (run-tests 'jepsen.holdfast.logs-test)]
    (shutdown-agents)
    (System/exit (if (and (pos? test) (zero? (+ fail error))) 0 1))))
