(ns jepsen.holdfast.all-test
  "All tests beside this one, in one process: `clojure.main -m jepsen.holdfast.all-test`
  with src, test and Jepsen on the class path, in jepsen/. None needs a cluster."
  (:require [clojure.java.io :as io]
            [clojure.string :as str]
            [clojure.test :refer [run-tests]]))

(defn- namespaces []
  (->> (.list (io/file "test/jepsen/holdfast"))
       (filter #(str/ends-with? % "_test.clj"))
       (remove #{"all_test.clj"})
       sort
       (map #(symbol (str "jepsen.holdfast."
                          (-> % (str/replace ".clj" "") (str/replace "_" "-")))))))

(defn -main [& _]
  (let [found (namespaces)]
    (run! require found)
    (let [{:keys [fail error test]} (apply run-tests found)]
      (shutdown-agents)
      (System/exit (if (and (seq found) (pos? test) (zero? (+ fail error))) 0 1)))))
