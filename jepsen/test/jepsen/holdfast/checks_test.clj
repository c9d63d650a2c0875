(ns jepsen.holdfast.checks-test
  "The checkers that all workloads share, each with a history or a log that it must
  find wrong."
  (:require [clojure.test :refer [deftest is testing]]
            [jepsen.checker :as checker]
            [jepsen.holdfast [checks :as checks]
                             [hand :as hand]
                             [nemesis :as nemesis]]))

(defn- verdict [c history] (checker/check c {} history {}))

;; How long nobody was served

(defn- writes
  "One in each of these seconds that succeeds; asked for in every second up to `end`."
  [end served?]
  (for [s (range end)]
    (hand/client s 0 :write (if (served? s) :ok :info) s)))

(defn- fault
  "A fault from second `s` to six seconds later, as the nemesis tells it."
  [s begun ended]
  [(hand/nemesis s :begin 0.5 (merge {:asked "a fault"} begun))
   (hand/nemesis (+ s 6) :end 0.5 ended)])

(defn- kept [served?] {:served? served?, :unbroken? served?})

(defn- availability [& parts]
  (verdict (checks/availability {:progress #{:write}, :within checks/allowed-s})
           (apply hand/history parts)))

(deftest a-silence-that-goes-on-over-faults-that-leave-a-majority-is-one
  (let [faults  (for [s [7 20 33 46]] (fault s (kept true) (kept true)))
        silent  (fn [from to] (writes 60 #(not (< from % to))))
        silence (fn [from to] (availability faults (silent from to)))]
    (is (= [false 35.0] ((juxt :valid? :longest-silence-s) (silence 10 45))))
    (is (= 1 (:windows (silence 10 45))))
    (is (false? (:valid? (silence 8 60))) "nobody ever comes back")
    (is (true? (:valid? (silence 10 39))))
    (is (true? (:valid? (silence 60 60))))))

(deftest nothing-is-expected-where-no-majority-could-talk
  (let [served? #(not (< 10 % 45))
        silence (fn [begun ended]
                  (:valid? (availability (for [s [7 20 33 46]] (fault s begun ended))
                                         (writes 60 served?))))]
    (is (false? (silence (kept true) (kept true))))
    (is (true? (silence (kept false) (kept true))) "all are killed, and killed anew")
    (testing "between two operations that each take the majority away for a moment"
      (is (true? (silence {:served? true, :unbroken? false}
                          {:served? true, :unbroken? false})))
      (is (true? (silence {:served? true} {:served? true})) "or do not say"))
    (testing "after an operation that failed"
      (is (true? (silence {:error "crashed"} {:served? true, :unbroken? true}))))))

(deftest a-fault-in-which-no-majority-talks-parts-two-silences
  ; 20 s of silence, then all are away for 6 s, then 20 s again.
  (let [served? #(or (< % 5) (< 52 %))
        run     (fn [begun ended] (availability (fault 25 begun ended) (writes 60 served?)))]
    (is (true? (:valid? (run (kept false) (kept true)))))
    (is (= 2 (:windows (run (kept false) (kept true)))))
    (is (false? (:valid? (run (kept true) (kept true)))))))

(deftest whether-a-majority-could-talk-all-the-while
  (let [nodes ["g1" "g2" "g3"]
        well  {:down #{}, :stopped #{}, :spoilt #{}, :unsure #{}}
        kept? (fn [fault before after]
                (nemesis/unbroken? nodes fault (merge well before) (merge well after)))]
    (is (kept? "kill" {} {:down #{"g1"}}))
    (is (kept? nil {:down #{"g1"}} {}) "its end")
    (is (not (kept? "restart-all" {} {:down (set nodes)})))
    (is (not (kept? nil {:down (set nodes)} {})) "all come back: nobody was there before")
    (is (not (kept? "loss" {} {:unsure #{"loss"}})))
    (is (kept? "upgrade" {} {}) "one after the other")
    (is (not (kept? "upgrade" {:down #{"g1"}} {:down #{"g1"}}))
        "there is a majority before and after, and none while one of the two is restarted")
    (is (not (kept? "restored" {:down #{"g2"}} {:down #{"g2"}, :spoilt #{"g2"}})))
    (is (kept? "delay" {:down #{"g1"}} {:down #{"g1"}}))))
