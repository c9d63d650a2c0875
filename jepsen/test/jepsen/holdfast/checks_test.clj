(ns jepsen.holdfast.checks-test
  "The checkers that all workloads share, each with a history or a log that it must
  find wrong."
  (:require [clojure.java.io :as io]
            [clojure.string :as str]
            [clojure.test :refer [deftest is testing]]
            [jepsen [checker :as checker]
                    [store :as store]]
            [jepsen.holdfast [checks :as checks]
                             [hand :as hand]
                             [hosts :as hosts]
                             [nemesis :as nemesis]
                             [summary :as summary]]))

(defn- verdict [c history] (checker/check c {} history {}))

;; Longest time without service

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

;; Gateways with an old copy of a disk

(deftest a-restored-disk-that-nobody-refused-is-found
  (let [judge (fn [fault what]
                (verdict (checks/impostors)
                         (hand/history (hand/nemesis 10 :begin 1 {:asked fault, :served? true})
                                       (hand/nemesis 20 :end 1 {:value   {fault what}
                                                                :served? true}))))]
    (is (false? (:valid? (judge "restored" {:restored "g2", :runs? true, :refused? false}))))
    (is (true? (:valid? (judge "restored" {:restored "g2", :runs? false, :refused? true}))))
    (testing "a twin that nobody refused is told and no more"
      (is (= [true 1] ((juxt :valid? :unrefused)
                       (judge "twice" {:twin-of "g2", :refused? false})))))))

(deftest what-the-door-of-append-says-of-an-old-disk-is-judged
  (let [judge (fn [said]
                (verdict (checks/impostors)
                         (hand/history (hand/nemesis 10 :begin 1 {:asked "restored", :served? true})
                                       (hand/nemesis 20 :end 1 {:value   (hosts/told said)
                                                                :served? true}))))]
    (is (false? (:valid? (judge "restored g2: not refused (ready); db1 is primary"))))
    (is (true? (:valid? (judge "restored g2: refused (CLUSTER-C3: it ends); db1 is primary"))))
    (is (= [true 1] ((juxt :valid? :unrefused)
                     (judge "twice g1: not refused (the twin runs); db2 is primary"))))
    (is (= "db1 is primary" (hosts/told "db1 is primary")))))

;; Logs

(defn- log-verdict
  "Of logs {node lines}, which lie where a run keeps them."
  [faults logs]
  (let [dir (.toFile (java.nio.file.Files/createTempDirectory
                       "logs" (make-array java.nio.file.attribute.FileAttribute 0)))]
    (try
      (doseq [[node lines] logs]
        (.mkdirs (io/file dir node))
        (spit (io/file dir node "gateway.log") (str (str/join "\n" lines) "\n")))
      (with-redefs [store/path (fn [_test & more] (apply io/file dir more))]
        (checker/check (checks/log faults "gateway.log") {:nodes ["g1" "g2"]} nil {}))
      (finally (run! io/delete-file (reverse (file-seq dir)))))))

(deftest a-log-with-a-broken-rule-is-found
  (let [fine "INFO holdfast_gateway: serves"
        bad  "ERROR holdfast_gateway: R11: this process exits"]
    (is (true? (:valid? (log-verdict #{"kill"} {"g1" [fine], "g2" [fine]}))))
    (doseq [line [bad "thread 'main' panicked at src/x.rs:1:1:" "R9: a bad record"]]
      (is (= [false [{:node "g2", :line line}]]
             ((juxt :valid? :matches) (log-verdict #{"kill"} {"g1" [fine]
                                                              "g2" [fine line fine]})))))
    (is (= :unknown (:valid? (log-verdict #{} {}))) "no log at all is no pass")))

;; Refusals

(deftest the-row-names-who-said-no
  (is (= "" (summary/red {:valid? true, :workload {:valid? true}})))
  (is (= "alive, coverage?"
         (summary/red {:valid? false, :alive {:valid? false, :dead ["g1"]}
                       :coverage {:valid? :unknown}, :log {:valid? true}})))
  (testing "of two judges, which of them"
    (is (= "workload/porcupine"
           (summary/red {:valid? false
                         :workload {:valid? false, :knossos {:valid? true, :keys 3}
                                    :porcupine {:valid? false}}})))
    (is (= "workload/knossos, workload/porcupine?"
           (summary/red {:valid? false
                         :workload {:valid? false, :knossos {:valid? false}
                                    :porcupine {:valid? :unknown}}}))))
  (testing "parts that are not why do not stand for the whole"
    (is (= "workload" (summary/red {:valid? false
                                    :workload {:valid? false, :final {:valid? :unknown}}})))))
