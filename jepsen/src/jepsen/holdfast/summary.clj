(ns jepsen.holdfast.summary
  "`summary DIR...`: a line of a Markdown table for each results.edn below."
  (:require [clojure.edn :as edn]
            [clojure.java.io :as io]
            [clojure.string :as str]))

(defn- read-results [f]
  (edn/read-string {:default (fn [_ v] v)} (slurp f)))

(defn- verdict [r]
  (case (:valid? r) true "valid", false "**invalid**", "unknown"))

(defn- red
  "Which checkers said no."
  [r]
  (->> (dissoc r :valid?)
       (filter (fn [[_ v]] (and (map? v) (not= true (:valid? v)))))
       (map (comp name key))
       sort (str/join ", ")))

(defn row
  [{:keys [run coverage availability] :as r}]
  (str/join " | "
            [(str "| " (:workload run)) (:nemesis run) (or (:store run) "file")
             (or (:lie run) "")
             (:time-limit run)
             (str/join ", " (for [[f n] (sort (:ok coverage))] (str n " " (name f))))
             (:unknown coverage)
             (:faults coverage)
             (if-let [s (:longest-silence-s availability)] (format "%.1f" s) "")
             (str (verdict r) (when-not (true? (:valid? r)) (str " (" (red r) ")"))
                  " |")]))

(def head
  (str "| workload | nemesis | store | lie | seconds | succeeded | unknown | faults | longest silence, s | verdict |\n"
       "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"))

(defn print-summary [dirs]
  (println head)
  (doseq [f (->> dirs
                 (mapcat #(file-seq (io/file %)))
                 (filter #(= "results.edn" (.getName ^java.io.File %)))
                 (remove #(str/includes? (.getPath ^java.io.File %) "/latest/"))
                 (sort-by #(.lastModified ^java.io.File %)))
          :let [r (read-results f)]
          :when (:run r)]
    (println (row r))))
